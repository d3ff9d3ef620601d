export { createEmulatedDriver, type EmulatedDriverOptions } from './driver.ts';
