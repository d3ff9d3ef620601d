/** A line of the doctor's report. */
import { type Line, mark, type Style, styled } from '../text.ts';

/** `unknown`: it could not be tried, or nothing here tells. */
export type Status = 'ok' | 'no' | 'unknown';

export interface Finding {
  /** The heading above the line. */
  readonly group: string;
  /** A short name, the same on every machine. */
  readonly name: string;
  readonly status: Status;
  /** What was found. */
  readonly fact: string;
  /** What to do about it, or to know; empty if nothing. */
  readonly remedy: string;
  /** Whether sharing works without it: such a `no` leaves the exit code 0. */
  readonly isOptional: boolean;
}

/** The remedy of a finding, and whether it is optional. */
export interface FindingDetails {
  readonly remedy?: string;
  readonly isOptional?: boolean;
}

export const finding = (
  group: string,
  name: string,
  status: Status,
  fact: string,
  { remedy = '', isOptional = false }: FindingDetails = {},
): Finding => ({ group, name, status, fact, remedy, isOptional });

/** What sharing needs and does not work. */
export const failures = (findings: readonly Finding[]): Finding[] =>
  findings.filter(({ status, isOptional }) => status === 'no' && !isOptional);

/** Whether everything that sharing needs works, as far as it could be tried. */
export const isSound = (findings: readonly Finding[]): boolean => failures(findings).length === 0;

/** The names of findings, each once. */
export const namesOf = (findings: readonly Finding[]): string =>
  [...new Set(findings.map(({ name }) => name))].join(', ');

const STYLES: Readonly<Record<Status, Style>> = { ok: 'good', no: 'bad', unknown: 'unsure' };

const STATUS_WIDTH = 9;
const MIN_NAME_WIDTH = 15;

/** The report as text: a heading for each group, and a line or two for each finding. */
export function describeFindings(findings: readonly Finding[]): Line[] {
  const width = Math.max(MIN_NAME_WIDTH, ...findings.map(({ name }) => name.length + 2));
  const indent = ' '.repeat(2 + STATUS_WIDTH + width);
  const lines: Line[] = [];
  let heading: string | undefined;
  for (const { group, name, status, fact, remedy, isOptional } of findings) {
    if (group !== heading)
      lines.push(...(heading === undefined ? [] : ['']), [styled('heading', group)]);
    heading = group;
    const isMinor = status === 'no' && isOptional;
    const style = isMinor ? 'faint' : STYLES[status];
    const word = styled(style, (isMinor ? '(no)' : status).padEnd(STATUS_WIDTH));
    lines.push([mark(style), word, `${name.padEnd(width)}${fact}`]);
    if (remedy !== '') lines.push(`${indent}→ ${remedy}`);
  }
  return lines;
}
