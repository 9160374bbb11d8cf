//===- RuntimeModule.cpp - the Python module segue._runtime ---------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Binds the runtime one to one; what is convenient is written in Python. Long
// calls drop the GIL. Tensors cross by DLPack (TensorExchange.h), errors as
// the classes of segue/errors.py (Errors.h). The typed view of this module is
// python/segue/_runtime.pyi.
//
//===----------------------------------------------------------------------===//

#include "Errors.h"
#include "PlanBinding.h"
#include "ProfileBinding.h"
#include "RanksBinding.h"
#include "ReportBinding.h"
#include "ScheduleBinding.h"
#include "SessionArguments.h"
#include "SlabBinding.h"
#include "TensorExchange.h"
#include "ToolkitFiles.h"
#include "segue/runtime/ByteQuantity.h"
#include "segue/runtime/Cuda/CudaDriver.h"
#include "segue/runtime/Engine/Engine.h"
#include "segue/runtime/OutputFile.h"
#include "segue/runtime/Device/KernelTarget.h"
#include "segue/runtime/Runtime.h"
#include "segue/runtime/Services/PrecisionService.h"
#include "segue/runtime/Services/SquareQ/SlabServer.h"
#include "segue/runtime/Reports/MemoryKinds.h"
#include "segue/runtime/Session/LoopBudget.h"
#include "segue/runtime/Session/RunBudget.h"
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <cstdio>
#include <malloc.h>
#include <nlohmann/json.hpp>

namespace nb = nanobind;
using namespace nb::literals;
using namespace segue;

using ReleaseGil = nb::call_guard<nb::gil_scoped_release>;

/// The overload of an accessor that refers to what an object has, and copies nothing: Python keeps the object.
template <typename Type, typename Result, typename... Args> static auto referring(Result (Type::*get)(Args...) const &) {
  return [get](const Type &self, Args... args) -> Result { return (self.*get)(args...); };
}

/// A dictionary from names to tensors.
static TensorMap tensorMap(const nb::dict &given) {
  TensorMap map;
  for (auto [name, tensor] : given)
    map.emplace(nb::cast<std::string>(name), nb::cast<Tensor>(tensor));
  return map;
}

static nb::dict toDict(const TensorMap &map) {
  nb::dict result;
  for (const auto &[name, tensor] : map)
    result[nb::str(name.c_str(), name.size())] = nb::cast(tensor);
  return result;
}

/// Has notebooks show objects as the function of segue/notebooks.py called `function` does.
static auto asNotebooksShow(const char *function) {
  return [function](nb::handle self) { return nb::module_::import_("segue.notebooks").attr(function)(self); };
}

static nb::tuple shapeOf(const Shape &shape) {
  nb::list extents;
  for (int64_t extent : shape)
    extents.append(extent);
  return nb::tuple(extents);
}

static std::span<const std::byte> bytesOf(const nb::bytes &bytes) {
  return {reinterpret_cast<const std::byte *>(bytes.c_str()), bytes.size()};
}

/// None: as the user's signatures say.
static NativeCode nativeCode(std::optional<bool> allowed) {
  return !allowed ? NativeCode::IfTrusted : *allowed ? NativeCode::Allow : NativeCode::Refuse;
}

static void bindTensor(nb::module_ &m) {
  nb::class_<Device>(m, "Device")
      .def_prop_ro("peak_bytes", [](Device &device) { return device.memory().peakBytes(Space::DeviceDram); })
      .def_static(
          "open", [](std::string_view spec) { return Device::open(spec); }, "spec"_a)
      .def("held",
           [](Device &device) {
             std::map<std::string, std::map<std::string, uint64_t>> held;
             for (const SpaceInfo &info : device.spaces())
               held[std::string(name(info.space))] = liveByKind(device.memory(), info.space);
             return held;
           })
      .def("traffic",
           [](Device &device) {
             const TransferCounters &counters = device.transfer().counters();
             std::map<std::string, std::map<std::string, double>> traffic;
             traffic["in"] = {{"bytes", double(counters.h2dCarriedBytes)},
                              {"seconds", double(counters.h2dCarriedNanoseconds) * 1e-9}};
             traffic["out"] = {{"bytes", double(counters.d2hCarriedBytes)},
                               {"seconds", double(counters.d2hCarriedNanoseconds) * 1e-9}};
             return traffic;
           })
      .def_prop_ro("name", &Device::name)
      .def_prop_ro("threads", &Device::threads)
      .def_prop_ro("kernel_target", &Device::kernelTarget)
      .def_prop_ro("has_unified_memory", &Device::hasUnifiedMemory)
      .def_prop_ro("number", &Device::number)
      .def(
          "wait_for_stream",
          [](Device &device, uintptr_t stream) { return device.enqueueWaitForStream(reinterpret_cast<void *>(stream)); },
          "stream"_a)
      .def(
          "let_stream_wait",
          [](Device &device, uintptr_t stream) {
            device.letStreamWait(reinterpret_cast<void *>(stream),
                                 Fence(Queue::Compute, device.position(Queue::Compute)));
          },
          "stream"_a)
      .def_prop_ro("seconds", &Device::seconds)
      .def_prop_ro("fused_calls", [](Device &device) { return device.engine().fusedCalls(); })
      .def_prop_ro(
          "stitch_report", [](Device &device) { return &stitchReport(device); }, nb::rv_policy::reference_internal)
      .def("__repr__", [](const Device &device) { return "<device " + std::string(device.name()) + ">"; });

  nb::class_<StitchReport>(m, "StitchReport")
      .def_prop_ro("steps", &StitchReport::steps)
      .def("json", [](const StitchReport &report) { return report.toJson().dump(); })
      .def("table", &StitchReport::table)
      .def("write_hints", &StitchReport::writeHints, "path"_a)
      .def("reset", &StitchReport::reset);

  nb::class_<Tensor>(m, "Tensor", "A tensor of the runtime, which speaks DLPack: torch.from_dlpack(tensor) has it without a copy where "
                                  "its device has the host's memory.")
      .def_static(
          "wrap",
          [](const DeviceRef &device, const nb::ndarray<nb::ro> &array, bool writable,
             std::optional<uintptr_t> stream, std::optional<uint64_t> behind) {
            return python::wrapArray(device, array, writable, stream, behind);
          },
          "device"_a, "array"_a, "writable"_a = false, "stream"_a = nb::none(), "behind"_a = nb::none())
      .def_static("scalar_f32", [](const DeviceRef &device, float v) { return Tensor::scalar(device, v); })
      .def_static("scalar_i64", [](const DeviceRef &device, int64_t v) { return Tensor::scalar(device, v); })
      .def_prop_ro("shape", [](const Tensor &t) { return shapeOf(t.shape()); })
      .def_prop_ro("element", [](const Tensor &t) { return std::string(name(t.element())); })
      .def_prop_ro("device", referring(&Tensor::device))
      // Of the device's memory, where that is not the host's.
      .def_prop_ro("address", [](const Tensor &t) { return reinterpret_cast<uintptr_t>(t.bytes()); })
      .def("go_behind", [](Tensor &t, uint64_t entry) { t.storage()->addWrite(Fence(Queue::Compute, entry)); }, "entry"_a)
      .def_prop_ro("is_there", &python::isThere)
      .def("there", [](const Tensor &t) { return python::TensorThere{t}; })
      .def("on_disk", &python::viewOnDisk)
      .def("item", &Tensor::item)
      .def("copy", [](const Tensor &t) { return copyTo(t.device(), t, TensorDesc(t.shape(), t.element())); })
      .def("capsule", [](nb::handle self) { return python::capsuleOf(nb::cast<const Tensor &>(self), self); })
      .def("__dlpack_device__", [](const Tensor &) { return nb::make_tuple(1, 0); })
      .def("__dlpack__",
           [](nb::handle self, const nb::kwargs &options) {
             const Tensor &tensor = nb::cast<const Tensor &>(self);
             return nb::cast(python::exportTensor(tensor, self)).attr("__dlpack__")(**options);
           })
      .def("__repr__", [](const Tensor &t) { return "<segue.Tensor " + t.desc().str() + ">"; });

  nb::class_<python::TensorThere>(m, "TensorThere")
      .def_ro("tensor", &python::TensorThere::tensor)
      .def("__dlpack_device__", [](const python::TensorThere &t) { return python::deviceOfView(t.tensor); })
      .def(
          "__dlpack__",
          [](const python::TensorThere &t, std::optional<intptr_t> stream, const nb::kwargs &options) {
            return nb::cast(python::viewOnDevice(t.tensor, stream)).attr("__dlpack__")(**options);
          },
          "stream"_a = nb::none(), "options"_a)
      .def("__repr__", [](const python::TensorThere &t) { return "<segue.Tensor there " + t.tensor.desc().str() + ">"; });
  m.def("describe_array", &python::describeArray);
}

static void bindBinary(nb::module_ &m) {
  nb::class_<Value>(m, "Value")
      .def_ro("name", &Value::name)
      .def_prop_ro("role", [](const Value &v) { return std::string(name(v.role)); })
      .def_prop_ro("shape", [](const Value &v) { return shapeOf(v.desc().shape); })
      .def_prop_ro("element", [](const Value &v) { return std::string(name(v.desc().element)); })
      .def_prop_ro("bytes", [](const Value &v) { return v.desc().spanBytes(); })
      .def_ro("of", &Value::of)
      .def_ro("location", &Value::location)
      .def("__repr__",
           [](const Value &v) { return "<" + std::string(name(v.role)) + " " + v.name + ": " + v.desc().str() + ">"; });

  nb::class_<SavePoint>(m, "SavePoint")
      .def_ro("value", &SavePoint::value)
      .def_ro("aliases_input", &SavePoint::aliasesInput)
      .def_ro("backward_order", &SavePoint::backwardOrder)
      .def_ro("bytes", &SavePoint::bytes)
      .def_ro("recompute_flops", &SavePoint::recomputeFlops)
      .def_ro("block", &SavePoint::block);

  nb::class_<Program>(m, "Program", "A program of a binary: forward, backward, optimizer, inference.")
      .def_prop_ro("name", referring(&Program::name))
      .def_prop_ro("inputs", referring(&Program::inputs))
      .def_prop_ro("outputs", referring(&Program::outputs))
      .def_prop_ro("interface_hash", &Program::interfaceHash)
      .def_prop_ro("save_points", referring(&Program::savePoints))
      .def_prop_ro("arena_bytes", &Program::arenaBytes)
      .def_prop_ro("arena_lower_bound", &Program::arenaLowerBound)
      .def_prop_ro("matmul_flops", &Program::matmulFlops)
      .def_prop_ro("command_counts", [](const Program &p) {
        nb::dict counts;
        for (const CommandCount &count : p.commandCounts())
          counts[count.kind.c_str()] = count.count;
        return counts;
      })
      .def("_repr_html_", asNotebooksShow("program"))
      .def("__repr__", [](const Program &p) {
        uint64_t commands = 0;
        for (const CommandCount &count : p.commandCounts())
          commands += count.count;
        return "<program " + std::string(p.name()) + ": " + std::to_string(p.inputs().size()) + " inputs, " +
               std::to_string(p.outputs().size()) + " outputs, " + std::to_string(commands) + " commands, arena of " +
               std::to_string(p.arenaBytes()) + " bytes>";
      });

  m.def(
      "sign_file", [](const nb::bytes &bytes) { return Signatures::ofUser().sign(bytesOf(bytes)); }, "bytes"_a);
  m.def(
      "code_of_entry", [](const nb::bytes &bytes) { return Signatures::ofUser().codeOf(bytesOf(bytes)); }, "bytes"_a);
  m.def(
      "entry_has_code",
      [](const nb::bytes &bytes, const std::string &code) { return Signatures::ofUser().hasCode(bytesOf(bytes), code); },
      "bytes"_a, "code"_a);

  nb::class_<Binary>(m, "Binary", "The programs and kernels that were compiled of a module; what a .segue file holds.")
      .def_static(
          "load",
          [](const std::filesystem::path &path, std::optional<bool> allowNative) {
            return Binary::load(path, {.nativeCode = nativeCode(allowNative)});
          },
          "path"_a, "allow_native_kernels"_a = nb::none())
      // Code that this process made, or that came with a pickle, which runs code anyway: allowed.
      .def_static(
          "from_bytes",
          [](const nb::bytes &bytes, const std::string &name, std::optional<bool> allowNative) {
            return Binary::fromMemory(bytesOf(bytes), {.nativeCode = nativeCode(allowNative)}, name);
          },
          "bytes"_a, "name"_a = "memory", "allow_native_kernels"_a = true)
      .def_prop_ro("native_code_leave",
                   [](const Binary &b) { return std::pair(b.nativeCodeLeave().isGiven, b.nativeCodeLeave().reason); })
      .def_prop_ro("name", referring(&Binary::name))
      .def_prop_ro("producer", &Binary::producer)
      .def_prop_ro("options", &Binary::options)
      .def_prop_ro("programs", referring(&Binary::programs))
      .def_prop_ro("bytes", &Binary::bytes)
      .def_prop_ro("kernels",
                   [](const Binary &b) {
                     std::vector<std::string> names;
                     for (const KernelInfo &kernel : b.kernels())
                       names.push_back(kernel.name);
                     return names;
                   })
      .def_prop_ro("segments", [](const Binary &b) {
        std::vector<std::tuple<std::string, uint64_t>> segments;
        for (const SegmentInfo &segment : b.segments())
          segments.emplace_back(segment.kind + (segment.capability ? " sm_" + std::to_string(segment.capability) : ""),
                                segment.bytes);
        return segments;
      })
      .def("_repr_html_", asNotebooksShow("binary"))
      .def("__repr__", [](const Binary &b) {
        return "<binary " + std::string(b.name()) + ": " + std::to_string(b.programs().size()) + " programs, " +
               std::to_string(b.bytes()) + " bytes>";
      });
}

/// Before the calls that take one.
static void bindBudget(nb::module_ &m) {
  m.def("outside_bytes", [](const DeviceRef &device) { return python::outsideBytes(*device); }, "device"_a);
  nb::class_<LoopBudget>(m, "LoopBudget")
      .def(
          "__init__",
          [](LoopBudget *self, const DeviceRef &device, uint64_t bytes, bool isPlanned) {
            LoopBudgetOptions options{.bytes = bytes, .isPlanned = isPlanned, .warn = [](const std::string &text) {
                                        nb::gil_scoped_acquire gil; // a call runs without
                                        nb::module_::import_("logging").attr("getLogger")("segue").attr("warning")("%s", text);
                                      }};
            new (self) LoopBudget(device, std::move(options));
          },
          "device"_a, "bytes"_a, "is_planned"_a = true)
      .def("figures", [](LoopBudget &budget) {
        LoopFigures figures;
        {
          nb::gil_scoped_release release; // a call may hold the budget, and want the GIL
          figures = budget.figures();
        }
        nb::dict result;
        result["budget_bytes"] = figures.budgetBytes;
        result["peak_bytes"] = figures.peakBytes;
        result["live_bytes"] = figures.liveBytes;
        result["spilled_bytes"] = figures.spilledBytes;
        result["restored_bytes"] = figures.restoredBytes;
        result["stalls"] = figures.stalls;
        result["stall_seconds"] = figures.stallSeconds;
        result["steps"] = figures.steps;
        result["aborted_steps"] = figures.abortedSteps;
        result["plans"] = figures.plans;
        result["planned_steps"] = figures.plannedSteps;
        result["departed_steps"] = figures.departedSteps;
        result["computed_again"] = figures.computedAgain;
        result["planning_seconds"] = figures.planningSeconds;
        result["certified_bytes"] = figures.certifiedBytes;
        result["planned_seconds"] = figures.plannedSeconds;
        result["why_no_plan"] = figures.whyNoPlan;
        return result;
      });
}

static void bindModule(nb::module_ &m) {
  nb::class_<Token>(m, "Token")
      .def(nb::init<>())
      .def_prop_ro("saved_bytes", &Token::savedBytes)
      .def("__bool__", [](const Token &token) { return bool(token); });

  nb::class_<Module>(m, "Module")
      .def(nb::init<DeviceRef, Binary, std::string>(), "device"_a, "binary"_a, "name"_a = "")
      .def_prop_ro("binary", referring(&Module::binary))
      .def_prop_ro("parameters", referring(&Module::parameters))
      .def_prop_ro("frozen", referring(&Module::frozen))
      .def_prop_ro("hypers", referring(&Module::hypers))
      .def_prop_ro("inputs", referring(&Module::inputs))
      .def_prop_ro("outputs", referring(&Module::outputs))
      .def_prop_ro("has_backward", &Module::hasBackward)
      .def("takes_gradient_of", &Module::takesGradientOf, "output"_a)
      .def("gives_gradient_of", &Module::givesGradientOf, "value"_a)
      .def(
          "infer",
          [](const Module &module, const nb::dict &values, LoopBudget *budget) {
            TensorMap map = tensorMap(values);
            nb::gil_scoped_release release;
            return budget ? budget->infer(module, map) : module.infer(map);
          },
          "values"_a, "budget"_a = nb::none())
      .def(
          "forward",
          [](const Module &module, const nb::dict &values, LoopBudget *budget) {
            TensorMap map = tensorMap(values);
            nb::gil_scoped_release release;
            ForwardResult result = budget ? budget->forward(module, map) : module.forward(map);
            return std::pair(std::move(result.outputs), std::move(result.token));
          },
          "values"_a, "budget"_a = nb::none())
      // With `keep`, the token can be used again; otherwise its memory goes as backward passes it.
      .def(
          "backward",
          [](const Module &module, Token &token, const nb::dict &gradients, bool keep,
             const std::optional<nb::dict> &values, LoopBudget *budget) {
            TensorMap map = tensorMap(gradients), others = values ? tensorMap(*values) : TensorMap();
            TensorMap result;
            {
              nb::gil_scoped_release release;
              Token used = keep ? Token(token) : std::exchange(token, Token());
              if (budget)
                result = budget->backward(module, std::move(used), map, values ? &others : nullptr);
              else
                result = values ? module.backward(std::move(used), map, others) : module.backward(std::move(used), map);
            }
            return toDict(result);
          },
          "token"_a, "gradients"_a, "keep"_a = false, "values"_a = nb::none(), "budget"_a = nb::none())
      .def(
          "program",
          [](const Module &module, std::string_view name) {
            const Program *program = module.find(name);
            return program ? std::optional<Program>(*program) : std::nullopt;
          },
          "name"_a);
}

/// Claims on the device are made of this.
static WeightStreamer &streamerOf(Session &session) {
  WeightStreamer *streamer = session.services() ? session.services()->weights() : nullptr;
  if (!streamer)
    throw Error(ErrorCode::InvalidArgument,
                "no weights are streamed; give a config with a key of Weight Stagehand in memory.stagehand");
  return *streamer;
}

static void bindSession(nb::module_ &m) {
  nb::class_<WeightStreamer::Scope>(m, "Claim")
      .def("release", &WeightStreamer::Scope::release)
      .def("__enter__", [](nb::object self) { return self; })
      .def("__exit__", [](WeightStreamer::Scope &scope, nb::args) { scope.release(); });
  nb::class_<StepResult>(m, "StepResult",
                         "What a training step has found, as trainer.last has it: the loss, the norm of the gradients before they were "
                         "clipped, the factor that clipping multiplied them by, the number of the step, the scale of its loss, whether it "
                         "was skipped, and the outputs of the last module by name.")
      .def_ro("loss", &StepResult::loss)
      .def_ro("grad_norm", &StepResult::gradNorm)
      .def_ro("clip", &StepResult::clip)
      .def_ro("step", &StepResult::step)
      .def_ro("loss_scale", &StepResult::lossScale)
      .def_ro("is_skipped", &StepResult::isSkipped)
      .def_prop_ro("outputs", [](const StepResult &r) { return toDict(r.outputs); })
      .def("_repr_html_", asNotebooksShow("step_result"))
      .def("__repr__", [](const StepResult &r) {
        char numbers[96];
        std::snprintf(numbers, sizeof numbers, "loss=%.6g, grad_norm=%.6g", r.loss, r.gradNorm);
        return "StepResult(step=" + std::to_string(r.step) + ", " + numbers + (r.isSkipped ? ", skipped" : "") + ")";
      });

  nb::class_<ParameterInfo>(m, "ParameterInfo")
      .def_ro("key", &ParameterInfo::key)
      .def_prop_ro("shape", [](const ParameterInfo &p) { return shapeOf(p.desc.shape); })
      .def_prop_ro("element", [](const ParameterInfo &p) { return std::string(name(p.desc.element)); })
      .def_ro("trained", &ParameterInfo::trained)
      .def_prop_ro("members", [](const ParameterInfo &p) {
        std::vector<std::pair<std::string, std::string>> members;
        for (const ParameterRef &member : p.members)
          members.emplace_back(member.module, member.name);
        return members;
      });

  nb::class_<Session>(m, "Session")
      .def(
          "__init__",
          [](Session *self, const DeviceRef &device, const python::NamedBinaries &modules, double maxGradNorm,
             int64_t seed, const python::Ties &tied, const python::Wires &wires,
             const std::optional<std::filesystem::path> &config, const std::optional<std::string> &configText,
             const std::optional<std::filesystem::path> &recordEvents, EventSink *events, const NameAliases &aliases,
             const std::optional<std::tuple<double, double, double, int64_t>> &lossScaling,
             std::shared_ptr<Collectives> collectives, const std::string &strategy, std::vector<size_t> stages) {
            SessionOptions options = python::sessionOptions(maxGradNorm, tied, wires);
            if (lossScaling) {
              auto [scale, growth, backoff, interval] = *lossScaling;
              options.lossScaling =
                  LossScaling{.scale = scale, .growth = growth, .backoff = backoff, .interval = interval};
            }
            options.seed = seed;
            options.events = events;
            // All ranks say the same of a run, so that the first one alone is heard.
            const char *level = collectives && collectives->rank() ? "debug" : "info";
            options.collectives = std::move(collectives);
            options.sharding = parseSharding(strategy);
            options.stages = std::move(stages);
            options.log = [level](const std::string &text) {
              nb::gil_scoped_acquire gil; // a step runs without
              nb::module_::import_("logging").attr("getLogger")("segue").attr(level)("%s", text);
            };
            options.config = python::configOf(config, configText);
            options.recordEvents = recordEvents.value_or("");
            options.makePrecision = precisionService();
            options.openSlab = openSlab;
            options.aliases = aliases;
            options.warn = [](const std::string &text) {
              nb::gil_scoped_acquire gil;
              nb::module_::import_("logging").attr("getLogger")("segue").attr("warning")("%s", text);
            };
            new (self) Session(device, python::sessionModules(modules), std::move(options));
          },
          "device"_a, "modules"_a, "max_grad_norm"_a = 0.0, "seed"_a = 0, "tied"_a = python::Ties(),
          "wires"_a = python::Wires(), "config"_a = nb::none(), "config_text"_a = nb::none(),
          "record_events"_a = nb::none(), "events"_a = nb::none(), "aliases"_a = NameAliases(),
          "loss_scaling"_a = nb::none(), "collectives"_a = nb::none(), "strategy"_a = "ddp",
          "stages"_a = std::vector<size_t>(),
          nb::keep_alive<1, 11>())
      .def(
          "add_sizes",
          [](Session &session, const python::NamedBinaries &modules, bool areForEvaluation) {
            session.addSizes(python::sessionModules(modules), areForEvaluation);
          },
          "modules"_a, "for_evaluation"_a = false)
      .def(
          "set_trained",
          [](Session &session, const python::NamedBinaries &modules, std::vector<int64_t> stepLags) {
            session.setTrained(python::sessionModules(modules), std::move(stepLags));
          },
          "modules"_a, "step_lags"_a)
      .def_prop_ro("loss_scale",
                   [](const Session &session) {
                     const auto &scaling = session.lossScaling();
                     return scaling ? std::optional(scaling->scale) : std::nullopt;
                   })
      .def_prop_ro("loss_scale_state",
                   [](const Session &session) {
                     return session.lossScaling() ? session.lossScaling()->state() : std::string();
                   })
      .def_prop_ro("parameters", referring(&Session::parameters))
      .def("set_parameter", &Session::setParameter, "key"_a, "tensor"_a, ReleaseGil())
      .def("bind_parameter", &Session::bindParameter, "key"_a, "tensor"_a, ReleaseGil())
      .def_prop_ro("slab_parameters", &Session::slabParameters)
      .def_prop_ro("parameters_elsewhere", &Session::parametersElsewhere)
      .def("parameter", referring(&Session::parameter), "key"_a, nb::rv_policy::copy)
      .def(
          "gather_parameters",
          [](Session &session, const nb::callable &take) {
            nb::gil_scoped_release release;
            python::RanksAtRest atRest(session.device());
            session.gatherParameters([&](const ParameterInfo &info, const Tensor &value) {
              nb::gil_scoped_acquire gil;
              take(info.key, value);
            });
          },
          "take"_a)
      .def(
          "load_weights", [](Session &session, const std::filesystem::path &path) { return session.loadWeights(path); },
          "path"_a, ReleaseGil())
      .def(
          "step",
          [](Session &session, const std::vector<nb::dict> &batches, std::vector<double> rates,
             const std::vector<std::pair<std::string, nb::callable>> &hooks) {
            std::vector<TensorMap> maps;
            for (const nb::dict &batch : batches)
              maps.push_back(tensorMap(batch));
            std::vector<GradientHook> calls;
            for (const auto &[key, hook] : hooks)
              calls.push_back({key, [function = nb::handle(hook)](Tensor &gradient) { // `hooks` keeps it alive
                                 nb::gil_scoped_acquire gil;
                                 function(gradient);
                               }});
            nb::gil_scoped_release release;
            python::RanksAtRest atRest(session.device());
            return session.step(std::span<const TensorMap>(maps), LearningRates(std::move(rates)), calls);
          },
          "micro_batches"_a, "rates"_a, "hooks"_a = std::vector<std::pair<std::string, nb::callable>>())
      .def(
          "forward_backward",
          [](Session &session, const nb::dict &batch) {
            TensorMap map = tensorMap(batch);
            nb::gil_scoped_release release;
            python::RanksAtRest atRest(session.device());
            return session.forwardBackward(map);
          },
          "batch"_a)
      .def("gradient", referring(&Session::gradient), "key"_a, nb::rv_policy::copy)
      .def("input_gradients", [](const Session &session) { return toDict(session.inputGradients()); })
      .def("clear_gradients", &Session::clearGradients)
      .def("finish_updates", &Session::finishUpdates, ReleaseGil())
      .def(
          "evaluate",
          [](Session &session, const nb::dict &batch) {
            TensorMap map = tensorMap(batch), result;
            {
              nb::gil_scoped_release release;
              python::RanksAtRest atRest(session.device());
              result = session.evaluate(map);
            }
            return toDict(result);
          },
          "batch"_a)
      .def_prop_ro("step_count", &Session::stepCount)
      .def_prop_ro("seed", &Session::seed)
      .def("state", [](const Session &session) { return toDict(session.state()); })
      .def(
          "restore",
          [](Session &session, const nb::dict &parameters, const nb::dict &state, int64_t step, int64_t seed,
             std::string precision, std::string lossScale) {
            Checkpoint checkpoint{tensorMap(parameters), tensorMap(state), step, seed, std::move(precision)};
            checkpoint.lossScale = std::move(lossScale);
            session.restore(checkpoint);
          },
          "parameters"_a, "state"_a, "step"_a, "seed"_a, "precision"_a = "", "loss_scale"_a = "")
      .def_prop_ro("calibration_samples", &Session::calibrationSamples)
      .def(
          "calibrate",
          [](Session &session, const nb::list &batches) {
            std::vector<TensorMap> maps;
            for (nb::handle batch : batches)
              maps.push_back(tensorMap(nb::cast<nb::dict>(batch)));
            nb::gil_scoped_release release;
            session.calibrate(maps);
          },
          "batches"_a)
      .def("precision_report",
           [](const Session &session) {
             return session.services() ? session.services()->precisionReport().dump() : std::string("{}");
           })
      .def("finish_records",
           [](Session &session) {
             if (session.services())
               session.services()->finishRecords();
           },
           ReleaseGil())
      .def("certify", [](Session &session, size_t microBatches) { return session.certify(microBatches); },
           "microbatches"_a, ReleaseGil())
      .def("precision_state",
           [](const Session &session) {
             return session.services() ? session.services()->precisionState() : std::string();
           })
      .def("streamed_blocks",
           [](Session &session) {
             std::vector<std::string> blocks;
             for (const StreamedParameter &parameter : streamerOf(session).parameters())
               if (std::string block = parameter.module + "/" + parameter.block;
                   std::ranges::find(blocks, block) == blocks.end())
                 blocks.push_back(std::move(block));
             return blocks;
           })
      .def(
          "keep_resident",
          [](Session &session, std::vector<std::string> blocks) {
            return streamerOf(session).keepResident(std::move(blocks));
          },
          "blocks"_a)
      .def(
          "reserve",
          [](Session &session, std::string model, int64_t bytes, bool primary) {
            return streamerOf(session).reserve(std::move(model),
                                               primary ? ResidencyRank::Primary : ResidencyRank::Secondary, bytes);
          },
          "model"_a, "bytes"_a, "primary"_a)
      .def(
          "as_guest", [](Session &session, std::string model) { return streamerOf(session).asGuest(std::move(model)); },
          "model"_a)
      .def("save", &Session::save, "path"_a, "notes"_a = "", ReleaseGil())
      .def("load", &Session::load, "path"_a, ReleaseGil())
      .def_prop_ro("can_seal", &Session::canSeal)
      .def("seal_at", &Session::sealAt, "path"_a, ReleaseGil())
      .def(
          "seal",
          [](Session &session, std::string notes) {
            Session::SealFigures figures;
            {
              nb::gil_scoped_release release;
              figures = session.seal(std::move(notes));
            }
            nb::dict result;
            result["sealed_bytes"] = figures.sealedBytes;
            result["written_bytes"] = figures.writtenBytes;
            result["file_bytes"] = figures.fileBytes;
            result["seconds"] = figures.seconds;
            return result;
          },
          "notes"_a = "");
}

/// How Python's part of the package writes files, too.
static void bindFiles(nb::module_ &m) {
  m.def("kernel_target", &kernelTarget);
  m.def("find_ptxas", [] { return schema::findPtxas(reinterpret_cast<const void *>(&bindBudget)); });
  m.attr("NO_PTXAS") = schema::kNoPtxas;
  m.def("check_output", &OutputFile::check, "path"_a);
  m.def("check_checkpoint_path", &checkCheckpointPath, "path"_a);
  m.def("is_checkpoint_folder", &isCheckpointFolder, "path"_a);
  m.def("checkpoint_file_of", &checkpointFileOf, "path"_a);
  m.def(
      "export_checkpoint",
      [](const std::filesystem::path &checkpoint, const std::filesystem::path &output) {
        saveCheckpoint(output, loadCheckpoint(Device::open("cpu"), checkpoint));
      },
      "checkpoint"_a, "output"_a, ReleaseGil());
  // Memory that was freed in pieces would stay with the process until somebody takes as much again.
  m.def("return_free_memory", [] { malloc_trim(0); }, ReleaseGil());
  m.def(
      "parse_bytes",
      [](const std::string &text) {
        if (std::optional<uint64_t> bytes = parseByteQuantity(text))
          return *bytes;
        throw Error(ErrorCode::InvalidArgument, "\"" + text + "\" is not " + std::string(byteQuantityForm));
      },
      "text"_a);
  m.def(
      "within_budget",
      [](uint64_t bytes, const std::filesystem::path &spillFolder, uint64_t spillCapacity, const std::string &device,
         const std::optional<std::filesystem::path> &config, const std::optional<std::string> &configText) {
        RunBudget budget{bytes, spillFolder, spillCapacity};
        return std::pair(budget.device(device), budget.config(python::configOf(config, configText)).json("").dump());
      },
      "bytes"_a, "spill_dir"_a, "spill_capacity"_a, "device"_a, "config"_a = nb::none(), "config_text"_a = nb::none(),
      "The spec of a device with so much memory, and the text of a config in which a plan keeps to it.");
  m.def(
      "within_tiers",
      [](const std::string &device, const std::optional<std::filesystem::path> &config,
         const std::optional<std::string> &configText) -> std::optional<std::tuple<std::string, std::string, bool>> {
        std::optional<Config> given = python::configOf(config, configText);
        std::optional<RunBudget> budget = given ? RunBudget::of(*given) : std::nullopt;
        if (!budget)
          return std::nullopt;
        return std::tuple(budget->device(device), budget->config(given).json("").dump(), !budget->spillFolder.empty());
      },
      "device"_a, "config"_a = nb::none(), "config_text"_a = nb::none(),
      "The same of a config with memory.tiers, and whether these have a disk; None where it has no such section.");
  m.def(
      "write_file",
      [](const std::filesystem::path &path, const nb::bytes &bytes) {
        std::span<const std::byte> text = bytesOf(bytes);
        nb::gil_scoped_release release;
        OutputFile file(path);
        file.write(text);
        file.commit();
      },
      "path"_a, "bytes"_a);
  m.def(
      "save_tensors",
      [](const std::filesystem::path &path, const nb::dict &tensors) {
        TensorMap map = tensorMap(tensors);
        nb::gil_scoped_release release;
        saveSafetensors(path, map);
      },
      "path"_a, "tensors"_a);
}

static void bindSubmit(nb::module_ &m) {
  m.def(
      "submit",
      [](const DeviceRef &device, const Program &program, std::vector<Tensor> inputs, LoopBudget *budget) {
        nb::gil_scoped_release release;
        return budget ? budget->submit(program, std::move(inputs)) : submit(device, program, std::move(inputs));
      },
      "device"_a, "program"_a, "inputs"_a, "budget"_a = nb::none());
  m.def("placeholder", &python::placeholderFor, "owner"_a);
  // What aligning the inputs of a program has cost so far on a device.
  m.def(
      "counters",
      [](const DeviceRef &device, const Program &program) {
        SubmitCounters counters = Executor(device, program).counters();
        nb::dict result;
        result["submits"] = counters.submits;
        result["inputs"] = counters.inputs;
        result["inputs_elided"] = counters.inputsElided;
        result["inputs_converted"] = counters.inputsConverted;
        result["cache_hits"] = counters.cacheHits;
        result["converted_bytes"] = counters.convertedBytes;
        result["donations"] = counters.donations;
        return result;
      },
      "device"_a, "program"_a);
}

NB_MODULE(_runtime, m) {
  m.doc() = "The runtime of Segue: binaries, modules, sessions. Use the package segue instead.";
  m.attr("__version__") = SEGUE_VERSION;
  // Devices and tensors in module-level caches outlive the module: no leak.
  nb::set_leak_warnings(false);
  python::registerErrorTranslator();
  useCuda();
  bindTensor(m);
  bindBinary(m);
  bindBudget(m);
  bindModule(m);
  bindFiles(m);
  bindSubmit(m);
  python::bindRanks(m);
  python::bindReports(m);
  bindSession(m);
  python::bindPlan(m);
  python::bindProfile(m);
  python::bindSchedules(m);
  python::bindSlab(m);
}
