// Loads tsx for programs that are TypeScript, and not for compiled ones: it takes a third of a second.
if (process.argv[1]?.endsWith('.ts')) await import('tsx');
