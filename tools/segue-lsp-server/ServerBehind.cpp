//===- ServerBehind.cpp - MLIR's language server, and what we add ---------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "ServerBehind.h"
#include "Completions.h"
#include "llvm/Support/JSON.h"
#include "llvm/Support/LSP/Transport.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Support/FormatVariadic.h"
#include <csignal>
#include <mutex>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using llvm::StringRef;
namespace json = llvm::json;

namespace segue::tool {

namespace {
/// A request that the server behind has not answered.
struct Pending {
  enum Kind { Initialize, Hover, Completion } kind;
  /// The name under the cursor of a hover.
  std::string name;
  /// The dialect whose operations a completion lists, and the attributes that it lacks.
  std::string dialect;
  std::vector<Named> attributes;
};

/// What passes through: texts and requests as the editor sends them, replies as they come back.
class Additions {
public:
  void note(const json::Object &message);
  /// Adds to the reply to a request that was noted.
  void extend(json::Object &message);

private:
  std::optional<Pending> noteRequest(StringRef method, const json::Object &params) const;

  DialectPages pages_;
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, Pending> pending_;
};
} // namespace

static std::string keyOf(const json::Value &id) { return llvm::formatv("{0}", id); }

static std::string uriOf(const json::Object &params) {
  const json::Object *document = params.getObject("textDocument");
  return document ? document->getString("uri").value_or("").str() : "";
}

static std::string textOf(const json::Object *holder) {
  return holder ? holder->getString("text").value_or("").str() : "";
}

std::optional<Pending> Additions::noteRequest(StringRef method, const json::Object &params) const {
  if (method == "initialize")
    return Pending{Pending::Initialize, {}, {}, {}};
  const json::Object *position = params.getObject("position");
  auto text = texts_.find(uriOf(params));
  if (!position || text == texts_.end() || (method != "textDocument/hover" && method != "textDocument/completion"))
    return std::nullopt;
  size_t at = byteAt(text->second, position->getInteger("line").value_or(0), position->getInteger("character").value_or(0));
  if (method == "textDocument/hover")
    return Pending{Pending::Hover, nameAt(text->second, at), {}, {}};
  std::string_view before = std::string_view(text->second).substr(0, at);
  return Pending{Pending::Completion, {}, dialectBefore(before), attributesAt(pages_, before)};
}

void Additions::note(const json::Object &message) {
  std::lock_guard lock(mutex_);
  const json::Object *params = message.getObject("params");
  StringRef method = message.getString("method").value_or("");
  if (!params)
    return;
  if (method == "textDocument/didOpen")
    texts_[uriOf(*params)] = textOf(params->getObject("textDocument"));
  else if (method == "textDocument/didClose")
    texts_.erase(uriOf(*params));
  else if (method == "textDocument/didChange") {
    // The server asks for whole texts.
    const json::Array *changes = params->getArray("contentChanges");
    if (const json::Object *last = changes && !changes->empty() ? changes->back().getAsObject() : nullptr)
      texts_[uriOf(*params)] = textOf(last);
  } else if (const json::Value *id = message.get("id"))
    if (std::optional<Pending> pending = noteRequest(method, *params))
      pending_[keyOf(*id)] = std::move(*pending);
}

static json::Object markdown(const std::string &text) { return json::Object{{"kind", "markdown"}, {"value", text}}; }

static json::Object item(const Named &named, int kind) {
  return json::Object{{"label", named.name}, {"kind", kind}, {"detail", named.help}, {"sortText", "0"}, {"insertTextFormat", 1}};
}

void Additions::extend(json::Object &message) {
  std::lock_guard lock(mutex_);
  const json::Value *id = message.get("id");
  json::Value *result = message.get("result");
  auto it = id && result ? pending_.find(keyOf(*id)) : pending_.end();
  if (it == pending_.end())
    return;
  Pending pending = std::move(it->second);
  pending_.erase(it);
  json::Object *object = result->getAsObject();
  if (pending.kind == Pending::Initialize && object) {
    (*object)["serverInfo"] = json::Object{{"name", "segue-lsp-server"}, {"version", SEGUE_VERSION}};
  } else if (pending.kind == Pending::Hover) {
    // On a value the server behind names the operation that makes it: `Operation: "segue.gather"`.
    json::Object *contents = object ? object->getObject("contents") : nullptr;
    std::string said = contents ? contents->getString("value").value_or("").str() : "";
    StringRef operation = StringRef(said).split('"').second.split('"').first;
    const PageEntry *page = pages_.find(pending.name);
    if (!page && StringRef(said).starts_with("Operation: \""))
      if ((page = pages_.find(operation.str()))) {
        (*contents)["value"] = said + "_" + page->summary + "_\n";
        return;
      }
    if (!page)
      return;
    std::string text = "**" + pending.name + "**\n" + page->text;
    if (contents)
      (*contents)["value"] = text + "\n---\n" + said;
    else
      *result = json::Object{{"contents", markdown(text)}};
  } else if (pending.kind == Pending::Completion && object) {
    json::Array *items = object->getArray("items");
    if (!items)
      return;
    for (json::Value &each : *items) {
      json::Object *operation = each.getAsObject();
      if (!operation || operation->getString("detail") != StringRef("operation"))
        continue;
      std::string name = (pending.dialect.empty() ? "" : pending.dialect + ".") + operation->getString("label").value_or("").str();
      if (const PageEntry *page = pages_.find(name)) {
        (*operation)["detail"] = page->summary;
        (*operation)["documentation"] = markdown(page->text);
      }
    }
    for (const Named &named : pending.attributes)
      items->push_back(item(named, /*property=*/10));
  }
}

/// Returns `text` with its lines ended by "\n" alone.
static std::string withPlainLines(StringRef text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i)
    if (text[i] != '\r')
      plain += text[i];
    else if (i + 1 == text.size() || text[i + 1] != '\n')
      plain += '\n';
  return plain;
}

/// Ends lines of the texts that an editor sends as MLIR does: its server dies of an error behind a "\r", as of a string
/// that is not closed. Places are lines and columns, which stay. Returns true if a text has changed.
static bool endLinesPlainly(json::Object &message) {
  StringRef method = message.getString("method").value_or("");
  json::Object *params = message.getObject("params");
  bool changed = false;
  auto end = [&](json::Object *holder) {
    std::optional<StringRef> text = holder ? holder->getString("text") : std::nullopt;
    if (!text || !text->contains('\r'))
      return;
    (*holder)["text"] = withPlainLines(*text);
    changed = true;
  };
  if (params && method == "textDocument/didOpen")
    end(params->getObject("textDocument"));
  else if (params && method == "textDocument/didChange")
    if (json::Array *changes = params->getArray("contentChanges"))
      for (json::Value &change : *changes)
        end(change.getAsObject());
  return changed;
}

/// Writes a message, unless who reads is gone.
static void send(llvm::raw_fd_ostream &os, StringRef body) {
  os << "Content-Length: " << body.size() << "\r\n\r\n" << body;
  os.flush();
  os.clear_error();
}

int serveBehind(const std::function<int()> &serve) {
  int requests[2], replies[2];
  if (::pipe(requests) || ::pipe(replies))
    return EXIT_FAILURE;
  pid_t child = ::fork();
  if (child < 0)
    return EXIT_FAILURE;
  if (child == 0) {
    ::dup2(requests[0], STDIN_FILENO);
    ::dup2(replies[1], STDOUT_FILENO);
    for (int each : {requests[0], requests[1], replies[0], replies[1]})
      ::close(each);
    return serve();
  }
  ::close(requests[0]);
  ::close(replies[1]);
  std::signal(SIGPIPE, SIG_IGN);
  Additions additions;
  std::thread([&additions, to = requests[1]] {
    llvm::raw_fd_ostream server(to, /*shouldClose=*/true);
    llvm::lsp::JSONTransportInputOverFile editor(stdin);
    while (!editor.isEndOfInput() && !editor.hasError()) {
      std::string text;
      if (failed(editor.readMessage(text)))
        continue;
      llvm::Expected<json::Value> message = json::parse(text);
      if (!message)
        llvm::consumeError(message.takeError()); // which the server behind answers
      else if (json::Object *object = message->getAsObject()) {
        if (endLinesPlainly(*object)) {
          text.clear();
          llvm::raw_string_ostream(text) << *message;
        }
        additions.note(*object);
      }
      send(server, text);
    }
  }).detach(); // it may wait for an editor that says no more
  llvm::raw_fd_ostream editor(STDOUT_FILENO, /*shouldClose=*/false);
  llvm::lsp::JSONTransportInputOverFile server(::fdopen(replies[0], "r"));
  while (!server.isEndOfInput() && !server.hasError()) {
    std::string text;
    if (failed(server.readMessage(text)))
      continue;
    llvm::Expected<json::Value> message = json::parse(text);
    if (!message) {
      llvm::consumeError(message.takeError());
      send(editor, text);
      continue;
    }
    if (json::Object *object = message->getAsObject())
      additions.extend(*object);
    std::string body;
    llvm::raw_string_ostream(body) << *message;
    send(editor, body);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE); // beside a thread that waits for the editor
}

} // namespace segue::tool
