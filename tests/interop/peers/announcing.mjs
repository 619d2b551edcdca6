// What the JavaScript peers share: what their desk does, their arguments, and the servers under
// them. Usage: node FILE PORT [--public URL], in a folder that has the packages.

import { createRequire } from "node:module";
import { setTimeout as pause } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const require = createRequire(`${process.cwd()}/`); // the packages are not beside this file
const express = require("express");
const grpc = require("@grpc/grpc-js");

// A part of the SDK, as a module: what `require` gives has a class of errors per part, and answers
// internal errors for all those of the others.
export const sdk = (part = "") =>
  import(`${pathToFileURL(process.cwd())}/node_modules/@a2a-js/sdk/dist/${part}index.js`);

// Does what the text says, once the task has begun: `move` tells a state, `write` a chunk, and
// `canceled` is the promise of being canceled.
export async function work(text, echo, { move, write, canceled }) {
  const [verb, rest] = text.split(" ");
  if (verb === "ask") return move("input-required", "Which?");
  if (verb === "wait") return canceled;
  if (verb === "fail") return move("failed", "as told");
  if (verb === "crash") throw new Error("as told");
  if (verb === "count") {
    for (let n = 0; n < Number(rest); n++) {
      write("count", `${n},`, n > 0);
      await pause(5);
    }
  } else {
    echo();
  }
  move("completed");
}

// Serves what `build(app, grpcServer, url, address)` makes; prints the URL that it listens on.
export function serve(build) {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { public: { type: "string" } },
  });
  console.info = () => {}; // standard output is for the address alone
  const app = express();
  const second = new grpc.Server();
  const insecure = grpc.ServerCredentials.createInsecure();
  second.bindAsync("127.0.0.1:0", insecure, (error, port) => {
    if (error) throw error;
    const server = app.listen(Number(positionals[0]), "127.0.0.1", () => {
      const own = `http://127.0.0.1:${server.address().port}`;
      const url = values.public ?? own;
      build(app, second, url, `${new URL(url).hostname}:${port}`);
      console.log(own);
    });
  });
  // whoever started this holds the other end of its standard input
  process.stdin.on("end", () => process.exit()).resume();
}
