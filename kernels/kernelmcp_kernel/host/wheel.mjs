// Builds a wheel from a source, which runs its code: confined as a guest is, with no folder that it may write.
//   node --experimental-wasm-jspi wheel.mjs RUNTIME_FOLDER INSIDE_FOLDER IMAGE BUILD_ID JOB
// JOB is JSON: {packages: [{folder, point}], backend, paths, look_for_more, left_out}. The source comes from descriptor 0, and the
// wheel, or a list of what else the build needs, goes to descriptor 1; what else there is to say is the status, and words on 2.
import fs from "node:fs";
import process from "node:process";
import { cleanGlobals } from "./globals.mjs";
import { findImage } from "./image.mjs";
import { leave } from "./leave.mjs";
import { loadRuntime, mount, mountPackage } from "./pyodide.mjs";

const [BUILT, NO_COMPILER, FAILED, MORE] = [0, 3, 4, 5];
const MAX_SAID_CHARS = 300;
const ARCHIVE = "/source.tar.gz";

const [runtime, inside, image, buildId, jobText] = process.argv.slice(2);
if (!runtime || !inside || !image || !buildId || !jobText) throw new Error("usage: wheel.mjs RUNTIME INSIDE IMAGE ID JOB");
const job = JSON.parse(jobText);

/** @param {number} fd @param {Uint8Array} bytes */
function writeAll(fd, bytes) {
  for (let done = 0; done < bytes.length; ) done += fs.writeSync(fd, bytes, done);
}

const source = fs.readFileSync(0);
const pyodide = await loadRuntime(runtime, findImage(image, buildId));
pyodide.setStdin({ read: () => 0, fsync: () => undefined });
mount(pyodide, inside, "/lib/kernelmcp");
for (const each of job.packages) mountPackage(each, (point, root) => mount(pyodide, root, point));
pyodide.FS.writeFile(ARCHIVE, source);
pyodide.runPython(`import sys; sys.path.append("/lib/kernelmcp/kernelmcp_guest/packages"); import wheel_build`);
const { build } = pyodide.pyimport("wheel_build");
cleanGlobals();
const points = job.packages.map((/** @type {any} */ { point }) => point);
const found = JSON.parse(build(JSON.stringify({ ...job, archive: ARCHIVE, points })));
if (found.wheel) writeAll(1, pyodide.FS.readFile(found.wheel));
else if (found.requires) writeAll(1, Buffer.from(JSON.stringify(found.requires)));
const status = found.wheel ? BUILT : found.requires ? MORE : found.compiler ? NO_COMPILER : FAILED;
leave(status, status === FAILED ? String(found.error).slice(0, MAX_SAID_CHARS) : "");
