// extension.js - starts segue-lsp-server for .mlir files.
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

async function start() {
  const command = vscode.workspace.getConfiguration("segue").get("server");
  client = new LanguageClient("segue", "Segue", { command }, { documentSelector: [{ language: "mlir" }] });
  try {
    await client.start();
  } catch (error) {
    client = undefined;
    vscode.window.showErrorMessage(`Segue's language server does not start: ${error.message}. Name it in the setting segue.server.`);
  }
}

async function stop() {
  const running = client;
  client = undefined;
  if (running) await running.stop();
}

async function restart() {
  await stop();
  await start();
}

exports.activate = async (context) => {
  context.subscriptions.push(
    vscode.commands.registerCommand("segue.restart", restart),
    vscode.workspace.onDidChangeConfiguration((change) => change.affectsConfiguration("segue.server") && restart()),
  );
  await start();
};
exports.deactivate = stop;
