export { type LoadProgress, loadTensors, type LoadTensorsOptions } from './load.ts';
export { TensorMap } from './tensor-map.ts';
export { type SaveTensorsOptions, saveTensors, type TensorSource } from './save.ts';
export type { TensorDtype } from './header.ts';
