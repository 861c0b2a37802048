// Runs the suite on Python in WebAssembly: node pyodide.mjs PACKAGE TREE WHEELS [arguments of pytest]
//
// PACKAGE is the folder of the npm package pyodide, TREE the root of the project, WHEELS a folder with pytest and
// what it needs, unpacked. The exit code is pytest's.
import { pathToFileURL } from "node:url";

const program = `
import os, sys

print("Python", sys.version)
os.chdir("/tree")
sys.path[:0] = ["/tree/src", "/tree/tests/environments", "/wheels"]
import pytest

int(pytest.main(["-p", "socketless", "-p", "no:cacheprovider", "-p", "no:faulthandler", *options]))
`;

async function main(folder, tree, wheels, ...options) {
  const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
  const { REDOUBLE_ENVIRONMENT } = process.env;
  const env = { HOME: "/tmp", PYTHONDONTWRITEBYTECODE: "1", REDOUBLE_ENVIRONMENT };
  const python = await loadPyodide({ env });
  python.mountNodeFS("/tree", tree);
  python.mountNodeFS("/wheels", wheels);
  python.globals.set("options", python.toPy(options));
  return python.runPython(program);
}

// Only the message: node would print the line of the source, which is all of Python.
main(...process.argv.slice(2)).then(
  (code) => (process.exitCode = code),
  (error) => {
    console.error(error.message);
    process.exitCode = 1;
  },
);
