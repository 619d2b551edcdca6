// Compiles the Solidity file that is named first, with the compiler in the folder that is named second, and prints
// the code of each contract as it is on the chain.
const fs = require("node:fs");
const path = require("node:path");

const [, , file, packages] = process.argv;
const solc = require(path.join(packages, "node_modules", "solc"));
const name = path.basename(file, ".sol");
const input = {
  language: "Solidity",
  sources: { [name]: { content: fs.readFileSync(file, "utf8") } },
  settings: {
    evmVersion: "paris",
    optimizer: { enabled: true },
    outputSelection: { "*": { "*": ["evm.deployedBytecode.object"] } },
  },
};
const output = JSON.parse(solc.compile(JSON.stringify(input)));
const errors = (output.errors || []).filter((one) => one.severity === "error");
if (errors.length) {
  console.error(errors.map((one) => one.formattedMessage).join("\n"));
  process.exit(1);
}
const found = Object.entries(output.contracts[name]).map(([contract, one]) => [contract, one.evm.deployedBytecode.object]);
process.stdout.write(JSON.stringify(Object.fromEntries(found)));
