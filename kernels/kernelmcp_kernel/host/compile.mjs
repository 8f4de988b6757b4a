// Compiles a package's Python to bytecode, confined as a guest is. Nothing of the package runs. It starts as a guest does (start_guest.cjs).
//   node --experimental-wasm-jspi compile.mjs RUNTIME_FOLDER INSIDE_FOLDER ZIP_FILE IMAGE BUILD_ID PACKAGE_FOLDER
import fs from "node:fs";
import { findImage } from "./image.mjs";
import { leave } from "./leave.mjs";
import { loadRuntime, mount } from "./pyodide.mjs";

const [runtime, inside, file, image, buildId, folder] = process.argv.slice(2);
if (!runtime || !inside || !file || !image || !buildId || !folder)
  throw new Error("usage: compile.mjs RUNTIME INSIDE ZIP IMAGE ID PACKAGE");

const pyodide = await loadRuntime(runtime, findImage(image, buildId));
mount(pyodide, inside, "/lib/kernelmcp");
mount(pyodide, folder, "/package");
const ours = "/lib/kernelmcp/kernelmcp_guest/packages";
pyodide.runPython(`import sys; sys.dont_write_bytecode = True; sys.path.append("${ours}")`);
pyodide.pyimport("bytecode").compile_all("/package", "/bytecode.zip");
fs.writeFileSync(file, pyodide.FS.readFile("/bytecode.zip"));
leave(0);
