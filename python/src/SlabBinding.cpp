//===- SlabBinding.cpp - SquareQ slabs in Python --------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "SlabBinding.h"
#include "segue/runtime/Device/Device.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "segue/runtime/Session/Session.h"
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <nlohmann/json.hpp>

namespace nb = nanobind;
using namespace nb::literals;

namespace segue::python {

using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;
using NamedExtents = std::vector<std::pair<std::string, std::vector<int64_t>>>;

static SlabVerify parseVerify(std::string_view text) {
  for (SlabVerify verify : {SlabVerify::None, SlabVerify::Open, SlabVerify::Full})
    if (name(verify) == text)
      return verify;
  throw Error(ErrorCode::InvalidArgument,
              "verify is \"" + std::string(text) + "\", it must be \"none\", \"open\" or \"full\"");
}

/// The signature of a model by the names and shapes of its float tensors.
static std::string signatureOf(const NamedExtents &tensors) {
  std::vector<NamedShape> shapes;
  for (const auto &[name, shape] : tensors)
    shapes.push_back({name, shape, ElementType::f32});
  return modelSignature(collectLinearLayers(shapes));
}

static std::shared_ptr<Slab> openSlab(const std::filesystem::path &path, std::optional<std::string> signature,
                                      const std::optional<NamedExtents> &wants, const NameAliases &aliases,
                                      std::string_view verify) {
  SlabExpectation expected{.signature = std::move(signature), .aliases = aliases};
  if (wants) {
    expected.wants.emplace();
    for (const auto &[name, shape] : *wants)
      expected.wants->push_back({name, shape});
  }
  SlabVerify how = parseVerify(verify);
  auto slab = std::make_shared<Slab>(path);
  nb::gil_scoped_release release;
  slab->open(std::move(expected), how);
  return slab;
}

/// Checked against the parameters of a session.
static std::shared_ptr<Slab> openSlabFor(const Session &session, const std::filesystem::path &path,
                                         const NameAliases &aliases, std::string_view verify) {
  SlabVerify how = parseVerify(verify);
  auto slab = std::make_shared<Slab>(path);
  nb::gil_scoped_release release;
  slab->open({.aliases = aliases, .program = programWeights(session.parameters())}, how);
  return slab;
}

void bindSlab(nb::module_ &m) {
  m.def("model_signature", signatureOf, "tensors"_a);

  nb::class_<Slab>(m, "Slab")
      .def_static("open", openSlab, "path"_a, "signature"_a = nb::none(), "wants"_a = nb::none(),
                  "aliases"_a = NameAliases(), "verify"_a = "open")
      .def_static("open_for", openSlabFor, "session"_a, "path"_a, "aliases"_a = NameAliases(), "verify"_a = "open")
      .def_prop_ro("layers",
                   [](const Slab &slab) {
                     std::vector<std::string> names;
                     for (const SlabLayer &layer : slab.manifest().layers)
                       names.push_back(layer.canonicalName);
                     return names;
                   })
      .def_prop_ro("unused", &Slab::unused)
      .def_prop_ro("notes", &Slab::notes)
      .def("holds", &Slab::holds, "name"_a)
      .def(
          "load_layer",
          [](const Slab &slab, const DeviceRef &device, std::string_view name, std::string_view element) {
            std::optional<ElementType> type = parseElementType(element);
            if (!type)
              throw Error(ErrorCode::InvalidArgument, "load_layer: there is no element type " + std::string(element));
            return slab.loadLayer(device, name, *type);
          },
          "device"_a, "name"_a, "element"_a = "f32", ReleaseGil())
      .def("has_bias", [](const Slab &slab, std::string_view name) { return slab.layer(name).biasKey.has_value(); })
      .def(
          "copy_bias",
          [](const Slab &slab, std::string_view name, const Tensor &target) {
            if (target.element() != ElementType::f32 || target.shape() != Shape{slab.size(name).out})
              throw Error(ErrorCode::LayoutMismatch, "copy_bias: " + target.desc().str() + " given, f32[" +
                                                         std::to_string(slab.size(name).out) + "] needed");
            slab.copyBias(name, {target.data<float>(), size_t(target.elementCount())});
          },
          "name"_a, "target"_a);

  nb::class_<SlabServer>(m, "SlabServer")
      .def(
          "__init__",
          [](SlabServer *self, const DeviceRef &device, const std::shared_ptr<Slab> &slab,
             const std::optional<std::filesystem::path> &checkpoint, const NameAliases &aliases,
             uint64_t readAheadBytes) {
            SlabServerOptions options{.readAheadBytes = readAheadBytes};
            if (checkpoint)
              options.fallback = checkpointFallback(*checkpoint, aliases);
            new (self) SlabServer(device, slab, std::move(options));
          },
          "device"_a, "slab"_a, "checkpoint"_a = nb::none(), "aliases"_a = NameAliases(),
          "read_ahead_bytes"_a = SlabServerOptions().readAheadBytes)
      .def("holds", &SlabServer::holds)
      .def("read_ahead", &SlabServer::readAhead, "order"_a)
      .def(
          "serve_into",
          [](SlabServer &server, std::string_view name, const Tensor &target) { server.serveInto(name, target); },
          "name"_a, "target"_a, ReleaseGil())
      .def("telemetry", [](SlabServer &server) { return server.takeTelemetry().json().dump(); });
}

} // namespace segue::python
