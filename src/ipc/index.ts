export type { IpcBufferDescriptor, IpcEventDescriptor } from './descriptor.ts';
export { getIpcHandle } from './export.ts';
export { openIpcBuffer, openIpcEvent } from './import.ts';
export { type IpcSupport, ipcSupport, type Support } from './support.ts';
