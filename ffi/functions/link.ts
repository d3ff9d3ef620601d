/** Linking several pieces of code into one image, on the host. */
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
import { needsContext } from './row.ts';

export const linkRows = {
  cuLinkCreate_v2: needsContext(uint, out(CUjit_option), pointers, out(CUlinkState)),
  cuLinkAddData_v2: needsContext(
    CUlinkState,
    CUjitInputType,
    pointer,
    size_t,
    constString,
    uint,
    out(CUjit_option),
    pointers,
  ),
  cuLinkComplete: needsContext(CUlinkState, pointers, out(size_t)),
  cuLinkDestroy: needsContext(CUlinkState),
} as const;
