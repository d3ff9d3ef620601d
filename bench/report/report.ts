/** A whole run as a report. */
import { groupBy } from '../group.ts';
import type { Results } from '../result-schema.ts';
import { describeAims } from './aims.ts';
import { type Block, heading, paragraph, picture } from './blocks.ts';
import { describeCrossovers } from './crossover.ts';
import { baselineOf, type Group, groupsOf } from './groups.ts';
import { lineFile, ratioFile, timeFile } from './pictures.ts';
import { delayTable, describeRun, groupTable } from './tables.ts';

/** The blocks of a run: its suites in turn, then the event loop and the aims. */
export function reportBlocks(name: string, results: Results, prefix: string): Block[] {
  const suites = [...groupBy(groupsOf(results), ({ suite }) => suite)];
  return [
    heading(1, name),
    paragraph(describeRun(results)),
    ...results.skipped.map(({ name: peer, reason }) => paragraph(`Left out: ${peer}: ${reason}.`)),
    ...suites.flatMap(([suite, groups]) => [
      heading(2, suite),
      ...barPictures(suite, groups, prefix),
      ...groups.flatMap((group) => groupBlocks(results, group, prefix)),
      ...(suite === 'hand-over' ? describeCrossovers(results) : []),
    ]),
    ...(results.delays.length > 0 ? [heading(2, 'event-loop'), ...delayTable(results)] : []),
    heading(2, 'Aims'),
    ...describeAims(results),
  ];
}

const groupBlocks = (results: Results, group: Group, prefix: string): Block[] => [
  heading(3, group.name),
  ...[...new Set(group.cases.map(({ what }) => what))].map((what) =>
    paragraph(`${what[0]?.toUpperCase()}${what.slice(1)}.`),
  ),
  ...(group.axis ? [picture(`${prefix}${lineFile(group)}`, `${group.name}: ${group.what}`)] : []),
  ...groupTable(results, group),
];

/** The pictures of the cases of a suite that have no line of their own. */
export function barPictures(suite: string, groups: readonly Group[], prefix: string): Block[] {
  const cases = groups.filter(({ axis }) => !axis).flatMap((group) => group.cases);
  return [
    ...(cases.some((one) => baselineOf(one))
      ? [picture(`${prefix}${ratioFile(suite)}`, `${suite}: ratios to C`)]
      : []),
    ...(cases.some((one) => !baselineOf(one))
      ? [picture(`${prefix}${timeFile(suite)}`, `${suite}: medians`)]
      : []),
  ];
}
