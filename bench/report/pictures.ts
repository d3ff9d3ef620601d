/** Which pictures a run has. */
import { groupBy } from '../group.ts';
import type { Results } from '../result-schema.ts';
import { ratioPlot, timePlot } from './bars.ts';
import { draw } from './draw.ts';
import type { Spec } from './frame.ts';
import { baselineOf, type Group, groupsOf } from './groups.ts';
import { linePlot } from './lines.ts';

/** A picture that is not drawn yet. */
interface Sketch {
  readonly file: string;
  readonly spec: Spec;
}

/** The picture of a group that has one of its own. */
export const lineFile = ({ suite, name }: Group): string =>
  `${name.startsWith(suite) ? name : `${suite}.${name}`}.svg`;
/** The picture of a suite's other cases: ratios to C, and times of those that have none. */
export const ratioFile = (suite: string): string => `${suite}.ratios.svg`;
export const timeFile = (suite: string): string => `${suite}.times.svg`;

/** Draws all pictures of a run; by their files. */
export async function drawAll(results: Results): Promise<Map<string, string>> {
  const pictures = new Map<string, string>();
  for (const { file, spec } of sketch(results)) pictures.set(file, await draw(spec));
  return pictures;
}

function sketch(results: Results): Sketch[] {
  const groups = groupsOf(results);
  const lines = groups.flatMap((group) =>
    group.axis ? [{ file: lineFile(group), spec: linePlot(results, group, group.axis) }] : [],
  );
  const others = groupBy(
    groups.filter(({ axis }) => !axis),
    ({ suite }) => suite,
  );
  const bars = [...others].flatMap(([suite, ofSuite]) => {
    const cases = ofSuite.flatMap((group) => group.cases);
    const [withC, without] = [cases.filter(baselineOf), cases.filter((one) => !baselineOf(one))];
    return [
      ...(withC.length > 0
        ? [{ file: ratioFile(suite), spec: ratioPlot(results, suite, withC) }]
        : []),
      ...(without.length > 0
        ? [{ file: timeFile(suite), spec: timePlot(results, suite, without) }]
        : []),
    ];
  });
  return [...lines, ...bars];
}
