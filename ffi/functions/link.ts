/** Linking: code of several sources made one, on the host. */
import {
  CUjit_option,
  CUjitInputType,
  CUlinkState,
  constString,
  out,
  pointer,
  pointers,
  size_t,
  uint,
} from '../types.ts';
import { inContext } from './row.ts';

export const linkRows = {
  cuLinkCreate_v2: inContext(uint, out(CUjit_option), pointers, out(CUlinkState)),
  cuLinkAddData_v2: inContext(
    CUlinkState,
    CUjitInputType,
    pointer,
    size_t,
    constString,
    uint,
    out(CUjit_option),
    pointers,
  ),
  cuLinkComplete: inContext(CUlinkState, pointers, out(size_t)),
  cuLinkDestroy: inContext(CUlinkState),
} as const;
