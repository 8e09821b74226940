// Loads snapshots with the loader of Chrome's DevTools, and compares their counts and retained sizes
// with the answers of standstill-heap.
//
//     node devtools.mjs FOLDER COMMAND [ORIGINAL=]FILE...
//
// FOLDER has the npm packages `chrome-devtools-frontend` and `esbuild`, and COMMAND is the binary of
// standstill-heap. The answers are those about ORIGINAL, if it is given; FILE is not compressed.

import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

// What DevTools needs of a newer JavaScript.
Promise.withResolvers ??= () => {
  let resolve, reject;
  const promise = new Promise((...both) => ([resolve, reject] = both));
  return { promise, resolve, reject };
};

const [folder, command, ...files] = process.argv.slice(2);
const require = createRequire(path.resolve(folder, 'package.json'));
const worker = path.resolve(folder, 'node_modules/chrome-devtools-frontend/front_end/entrypoints/heap_snapshot_worker');
const bundle = path.resolve(folder, 'bundle.mjs');
// The package lacks a file that its build generates.
const locales = ['LOCALES', 'BUNDLED_LOCALES'].map(name => `export const ${name} = ['en-US'];`)
  .concat(['DEFAULT_LOCALE', 'REMOTE_FETCH_PATTERN', 'LOCAL_FETCH_PATTERN'].map(name => `export const ${name} = 'en-US';`));
await require('esbuild').build({
  stdin: {
    contents: "export * from './HeapSnapshot.js'; export * from './HeapSnapshotLoader.js';",
    resolveDir: worker,
  },
  bundle: true,
  platform: 'node',
  format: 'esm',
  outfile: bundle,
  plugins: [{
    name: 'locales',
    setup(build) {
      build.onResolve({ filter: /\/locales\.js$/ }, () => ({ path: 'locales', namespace: 'generated' }));
      build.onLoad({ filter: /./, namespace: 'generated' }, () => ({ contents: locales.join('\n') }));
    },
  }],
});
const { HeapSnapshotLoader, SecondaryInitManager } = await import(pathToFileURL(bundle));

async function load(file) {
  const loader = new HeapSnapshotLoader({ sendEvent() {} });
  for await (const chunk of fs.createReadStream(file, 'utf8')) loader.write(chunk);
  loader.close();
  const { port1, port2 } = new MessageChannel();
  new SecondaryInitManager(port2);
  const snapshot = await loader.buildSnapshot(port1);
  port1.close();
  return snapshot;
}

const ask = (...words) => JSON.parse(execFileSync(command, [...words, '--json'], { maxBuffer: 1 << 30 }));
// DevTools keeps numbers of 32 bits.
const short = number => number % 2 ** 32;
let failures = 0;
function compare(file, what, theirs, ours) {
  if (theirs === ours) return;
  console.error(`${file}: ${what}: DevTools has ${theirs}, standstill-heap ${ours}`);
  failures++;
}

for (const words of files) {
  const [original, file] = words.includes('=') ? words.split('=') : [words, words];
  const snapshot = await load(file);
  const summary = ask('summary', original);
  const { objects } = ask('dominators', original, '--most', '200');
  if (original === file) compare(file, 'nodes', snapshot.nodeCount, summary.nodes);
  compare(file, 'bytes of the root', snapshot.rootNode().retainedSize(), summary.reachable_bytes);
  const sizes = new Map();
  const node = snapshot.createNode(0);
  for (let at = 0; at < snapshot.nodeCount; at++) {
    node.nodeIndex = at * snapshot.nodeFieldCount;
    sizes.set(node.id(), node.retainedSize());
  }
  let found = 0;
  for (const object of objects) {
    const size = sizes.get(short(object.id));
    if (size === undefined && original !== file) continue; // It is a part of a sum.
    compare(file, `retained bytes of ${object.class} @${object.id}`, size, object.retained_bytes);
    found++;
  }
  if (found < Math.min(objects.length, 20)) compare(file, 'objects', found, objects.length);
  console.log(`${path.basename(file)}: ${snapshot.nodeCount} nodes, ${found} objects compared`);
}
process.exit(failures === 0 ? 0 : 1);
