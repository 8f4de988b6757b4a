// Compiles a package's Python to bytecode, confined as a guest is. Nothing of the package runs.
//   node --experimental-wasm-jspi compile.mjs RUNTIME_FOLDER INSIDE_FOLDER IMAGE BUILD_ID PACKAGE_FOLDER ZIP_FILE
import fs from "node:fs";
import { findImage } from "./image.mjs";
import { leave } from "./leave.mjs";
import { loadRuntime, mount } from "./pyodide.mjs";

const [runtime, inside, image, buildId, folder, file] = process.argv.slice(2);
if (!runtime || !inside || !image || !buildId || !folder || !file)
  throw new Error("usage: compile.mjs RUNTIME INSIDE IMAGE ID PACKAGE ZIP");

const pyodide = await loadRuntime(runtime, findImage(image, buildId));
mount(pyodide, inside, "/lib/kernelmcp");
mount(pyodide, folder, "/package");
pyodide.runPython(`
import sys
sys.dont_write_bytecode = True
sys.path.append("/lib/kernelmcp/kernelmcp_guest/packages")
import bytecode
bytecode.compile_all("/package", "/bytecode.zip")`);
fs.writeFileSync(file, pyodide.FS.readFile("/bytecode.zip"));
leave(0);
