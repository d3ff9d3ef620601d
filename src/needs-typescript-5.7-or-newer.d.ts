// Older compilers get this file as the declarations of every entry (`types@<5.7` in package.json).
// They would read the real ones as `any` wherever those use what 5.7 added, such as
// `Float32Array<ArrayBuffer>`. This file exports nothing and so is not a module, and the error at the
// import names it: TS2306 "File '.../needs-typescript-5.7-or-newer.d.ts' is not a module".
