//===- ReplaySquareQ.cpp - SquareQ in segue-run replay --------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// SquareQ keeps no state between events: each is a pure function of its fields
// and of the log's `base`. Checksums are 8 hex digits; `serve` counts codes and
// scales, since a zero point that is all zero is not sent.
//
//===----------------------------------------------------------------------===//

#include "Replayer.h"
#include "segue/runtime/Error.h"
#include "segue/runtime/JsonNumbers.h"
#include "segue/runtime/Services/SquareQ/LayerQuantizer.h"
#include "segue/runtime/Services/SquareQ/LinearLayers.h"
#include "segue/runtime/Services/SquareQ/SlabChecks.h"
#include "segue/runtime/Services/SquareQ/SquareQConfig.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <zlib.h>

namespace segue::tool {

static std::string hexOf(uint32_t bits, int digits = 8) {
  char text[16];
  std::snprintf(text, sizeof text, "%0*x", digits, bits);
  return text;
}

static std::string crcOf(std::span<const std::byte> bytes) {
  return hexOf(uint32_t(::crc32(0, reinterpret_cast<const Bytef *>(bytes.data()), uInt(bytes.size()))));
}

/// A number, or "nan", "inf", "-inf".
static float floatOf(const Json &value) {
  if (std::optional<double> number = numberOf(value))
    return float(*number);
  throw MalformedEvent(value.dump() + " is neither a number nor \"nan\", \"inf\" or \"-inf\"");
}

namespace {

/// A list of rows of one length.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<float> values;
};

} // namespace

static Matrix matrixOf(EventReader &event, const char *field) {
  const Json &json = event.json(field);
  Matrix matrix;
  if (json.is_array())
    for (const Json &row : json) {
      if (!row.is_array() || row.empty() || (matrix.rows && row.size() != size_t(matrix.columns)))
        throw MalformedEvent("\"" + std::string(field) + "\" is not a list of rows of one length");
      ++matrix.rows;
      matrix.columns = int64_t(row.size());
      for (const Json &value : row)
        matrix.values.push_back(floatOf(value));
    }
  if (matrix.rows == 0)
    throw MalformedEvent("\"" + std::string(field) + "\" is not a list of rows");
  return matrix;
}

static std::vector<float> scalesOf(EventReader &event, int64_t rows) {
  std::vector<float> scales;
  for (const std::string &text : event.texts("scale_hex")) {
    char *end = nullptr;
    unsigned long bits = std::strtoul(text.c_str(), &end, 16);
    if (text.empty() || text.size() > 8 || *end)
      event.refuse("scale_hex", "up to 8 hex digits per row are");
    scales.push_back(std::bit_cast<float>(uint32_t(bits)));
  }
  if (scales.size() != size_t(rows))
    event.refuse("scale_hex", "one scale per row is");
  return scales;
}

/// The field `zero_point`, a number per row; zeros without it.
static std::vector<float> zerosOf(EventReader &event, int64_t rows) {
  std::vector<float> zeros(static_cast<size_t>(rows));
  if (const Json *given = event.optionalJson("zero_point")) {
    if (!given->is_array() || given->size() != zeros.size())
      event.refuse("zero_point", "one number per row is");
    std::transform(given->begin(), given->end(), zeros.begin(), floatOf);
  }
  return zeros;
}

static SlabSize sizeOf(const SlabForm &form, int64_t out, int64_t in, bool bias) {
  if (std::optional<SlabSize> size = slabSize(form, out, in, bias))
    return *size;
  throw MalformedEvent("no layer has " + std::to_string(out) + " x " + std::to_string(in) + " weights with pad_k " +
                       std::to_string(form.padK));
}

static QuantizedLayer quantized(const SlabForm &form, const Matrix &weight, ScaleSearch search) {
  QuantizedLayer layer;
  RowReader rows = [&](int64_t first, int64_t count, std::span<float> values) {
    std::copy_n(weight.values.begin() + first * weight.columns, count * weight.columns, values.begin());
  };
  quantizeLayer(form, sizeOf(form, weight.rows, weight.columns, false), search, rows, Threads(1), layer);
  return layer;
}

static float scaleOf(const QuantizedLayer &layer, int64_t row) {
  float scale;
  std::memcpy(&scale, &layer.scale[4 * size_t(row)], 4);
  return scale;
}

/// The greatest |w - w'| / scale of a layer.
static double greatestError(const SlabForm &form, const Matrix &weight, const QuantizedLayer &layer) {
  std::vector<float> back(weight.values.size());
  dequantizeRows(form, layer, 0, weight.rows, back);
  double greatest = 0;
  for (size_t i = 0; i < back.size(); ++i)
    greatest = std::max(greatest, std::fabs(double(weight.values[i]) - double(back[i])) /
                                      double(scaleOf(layer, int64_t(i) / weight.columns)));
  return greatest;
}

/// The bound of docs/specs/squareq.md: |w - w'| <= scale * (0.5 + 2^-14).
static constexpr double errorBound = 0.5 + 0x1p-14;

//===----------------------------------------------------------------------===//
// open
//===----------------------------------------------------------------------===//

/// Sets the value at a dotted path, or removes it (null). Keys may have dots
/// themselves: the longest one that is there is taken.
static void editAt(Json &json, std::string_view path, const Json &value) {
  if (json.is_array()) {
    size_t end = std::min(path.find('.'), path.size());
    size_t index = 0;
    for (char digit : path.substr(0, end)) {
      if (digit < '0' || digit > '9')
        throw MalformedEvent("edit: \"" + std::string(path) + "\" is not an index");
      index = index * 10 + size_t(digit - '0');
    }
    if (end == 0 || index > json.size() || (index == json.size() && end != path.size()))
      throw MalformedEvent("edit: there is no element \"" + std::string(path) + "\"");
    if (end != path.size())
      return editAt(json[index], path.substr(end + 1), value);
    if (value.is_null() && index < json.size())
      json.erase(index);
    else if (index == json.size())
      json.push_back(value);
    else
      json[index] = value;
    return;
  }
  if (!json.is_object())
    throw MalformedEvent("edit: nothing can be set at \"" + std::string(path) + "\"");
  for (size_t end = path.size(); end != 0 && end != std::string_view::npos; end = path.rfind('.', end - 1)) {
    auto found = json.find(std::string(path.substr(0, end)));
    if (found == json.end())
      continue;
    if (end != path.size())
      return editAt(*found, path.substr(end + 1), value);
    if (value.is_null())
      json.erase(found);
    else
      *found = value;
    return;
  }
  if (!value.is_null())
    json[std::string(path)] = value;
}

/// Reads {key: [type, shape]}; a third item is the values, for check 6.
static TensorTable tableOf(const Json &json, std::map<std::string, std::vector<float>> &values) {
  TensorTable table;
  if (!json.is_object())
    return table;
  for (const auto &[key, entry] : json.items()) {
    bool isEntry = entry.is_array() && entry.size() >= 2 && entry[0].is_string() && entry[1].is_array() &&
                   std::all_of(entry[1].begin(), entry[1].end(), [](const Json &e) { return e.is_number_integer(); });
    if (!isEntry)
      throw MalformedEvent("tensor \"" + key + "\" is not [type, shape]");
    table[key] = {entry[0], entry[1].get<Shape>()};
    if (entry.size() > 2)
      for (const Json &value : entry[2])
        values[key].push_back(floatOf(value));
  }
  return table;
}

static SlabExpectation expectationOf(const Json &program) {
  SlabExpectation expected;
  if (!program.is_object())
    return expected;
  if (auto signature = program.find("signature"); signature != program.end() && signature->is_string())
    expected.signature = signature->get<std::string>();
  if (auto wants = program.find("wants"); wants != program.end() && wants->is_array()) {
    expected.wants.emplace();
    for (const Json &want : *wants) {
      if (want.is_string())
        expected.wants->push_back({want, {}});
      else if (want.is_array() && want.size() == 2 && want[0].is_string() && want[1].is_array())
        expected.wants->push_back({want[0], want[1].get<Shape>()});
      else
        throw MalformedEvent("a wanted weight is neither a name nor [name, shape]");
    }
  }
  return expected;
}

static Json applyOpen(const Json &logBase, EventReader &event) {
  Json base = logBase.is_object() ? logBase : Json::object();
  if (const Json *edits = event.optionalJson("edit"))
    for (const Json &edit : *edits) {
      if (!edit.is_array() || edit.size() != 2 || !edit[0].is_string())
        throw MalformedEvent("an edit is not [path, value]");
      editAt(base, edit[0].get<std::string>(), edit[1]);
    }
  auto part = [&](const char *key) { return base.contains(key) ? base[key] : Json(nullptr); };
  std::vector<SlabProblem> problems;
  SlabManifest manifest = readManifest(part("manifest"), problems);
  std::map<std::string, std::vector<float>> values;
  TensorTable table = tableOf(part("tensors"), values);
  SlabFindings findings = checkSlab(
      manifest, std::move(problems), table, [&](const std::string &key) { return values[key]; },
      expectationOf(part("program")));
  Json answer{{"errors", Json::array()}, {"check", nullptr}, {"subjects", Json::array()}, {"unused", findings.unused}};
  for (const SlabProblem &problem : findings.problems) {
    answer["errors"].push_back(problem.sentence);
    answer["subjects"].push_back(problem.subject);
  }
  if (findings.failedCheck) {
    answer["error"] = "SLAB_INVALID";
    answer["check"] = findings.failedCheck;
  }
  return answer;
}

//===----------------------------------------------------------------------===//
// The service
//===----------------------------------------------------------------------===//

namespace {

class SquareQReplayer : public Replayer {
public:
  explicit SquareQReplayer(const ReplayLog &log) : log_(log) {
    ConfigReader reader = log_.readConfig();
    config_ = SquareQConfig::read(reader);
  }

  Json apply(EventReader &event) override {
    const std::string &op = event.op();
    if (op == "quantize")
      return applyQuantize(event);
    if (op == "dequantize")
      return applyDequantize(event);
    if (op == "bound")
      return applyBound(event);
    if (op == "size")
      return applySize(event);
    if (op == "signature")
      return applySignature(event);
    if (op == "open")
      return applyOpen(log_.base, event);
    if (op == "lcg")
      return applyLcg(event);
    if (op == "serve")
      return applyServe(event);
    if (op == "matmul")
      return applyMatmul(event);
    if (op == "config_case")
      return answerConfigCase(log_.config, event, [](ConfigReader &reader) { SquareQConfig::read(reader); });
    event.unknownOp(
        {"quantize", "dequantize", "bound", "size", "signature", "open", "lcg", "serve", "matmul", "config_case"});
  }

private:
  /// Returns the form of replayed rows, which are INT8.
  SlabForm formOf(EventReader &event) const { return {.padK = event.integer("pad_k", config_.padK)}; }

  Json applyQuantize(EventReader &event) const {
    Matrix weight = matrixOf(event, "weight");
    std::string name = event.text("layer", "");
    QuantizedLayer layer = quantized(formOf(event), weight, config_.scaleSearch);
    if (layer.nonFinite)
      return {{"error", errorCodeName(ErrorCode::NonFinite)},
              {"layer", name},
              {"row", layer.nonFinite->first},
              {"col", layer.nonFinite->second}};
    Json answer{{"qweight", Json::array()}, {"scale_hex", Json::array()}, {"zero_point", Json::array()}};
    for (int64_t r = 0; r < weight.rows; ++r) {
      Json row = Json::array();
      for (int64_t c = 0; c < layer.size.padded; ++c)
        row.push_back(int(int8_t(layer.qweight[size_t(r * layer.size.padded + c)])));
      answer["qweight"].push_back(row);
      answer["scale_hex"].push_back(hexOf(std::bit_cast<uint32_t>(scaleOf(layer, r))));
      answer["zero_point"].push_back(0.0);
    }
    answer["padded_in"] = layer.size.padded;
    answer["slab_bytes"] = layer.size.slab();
    answer["floored_rows"] = layer.error.flooredRows;
    return answer;
  }

  static std::vector<std::byte> codesOf(const Matrix &matrix) {
    std::vector<std::byte> codes;
    for (float value : matrix.values) {
      if (!(value >= -128 && value <= 127) || value != std::floor(value))
        throw MalformedEvent("\"qweight\" holds a number that is no int8");
      codes.push_back(std::byte(int8_t(value)));
    }
    return codes;
  }

  static Json applyDequantize(EventReader &event) {
    Matrix matrix = matrixOf(event, "qweight");
    std::vector<std::byte> codes = codesOf(matrix);
    std::vector<float> scales = scalesOf(event, matrix.rows), zeros = zerosOf(event, matrix.rows);
    std::string type = event.text("type", "f32");
    if (type != "f32" && type != "bf16")
      event.refuse("type", "f32 and bf16 are");
    Json values = Json::array(), bits = Json::array();
    std::vector<float> row(size_t(matrix.columns));
    for (int64_t r = 0; r < matrix.rows; ++r) {
      dequantizeRow(std::span(codes).subspan(size_t(r * matrix.columns), row.size()), StorageType::Int8Row,
                    scales[size_t(r)], zeros[size_t(r)], row);
      Json rowValues = Json::array(), rowBits = Json::array();
      for (float value : row) {
        uint16_t half = floatToBf16(value);
        rowValues.push_back(double(type == "bf16" ? bf16ToFloat(half) : value));
        rowBits.push_back(type == "bf16" ? hexOf(half, 4) : hexOf(std::bit_cast<uint32_t>(value)));
      }
      values.push_back(rowValues);
      bits.push_back(rowBits);
    }
    return {{"values", values}, {type == "bf16" ? "bf16_hex" : "hex", bits}};
  }

  Json applyBound(EventReader &event) const {
    Matrix weight = matrixOf(event, "weight");
    SlabForm form = formOf(event);
    QuantizedLayer layer = quantized(form, weight, ScaleSearch::AbsMax);
    if (layer.nonFinite)
      return {{"error", errorCodeName(ErrorCode::NonFinite)},
              {"row", layer.nonFinite->first},
              {"col", layer.nonFinite->second}};
    return {{"within", greatestError(form, weight, layer) <= errorBound}};
  }

  Json applySize(EventReader &event) const {
    SlabSize size = sizeOf(formOf(event), event.integer("out"), event.integer("in"), event.boolean("bias", false));
    return {{"padded_in", size.padded},
            {"slab_bytes", size.slab()},
            {"bf16_bytes", size.bf16},
            {"store", size.ratio() > config_.maxRatio ? "bf16" : "int8"}};
  }

  static Json applySignature(EventReader &event) {
    std::vector<LinearLayer> layers;
    for (const Json &layer : event.json("layers")) {
      if (!layer.is_array() || layer.size() != 4 || !layer[0].is_string() || !layer[1].is_number_integer() ||
          !layer[2].is_number_integer() || !layer[3].is_boolean())
        throw MalformedEvent("a layer is not [name, in, out, bias]");
      layers.push_back({layer[0], layer[1], layer[2], layer[3]});
    }
    return {{"text", signatureText(layers)}, {"hex", modelSignature(layers)}};
  }

  Json applyLcg(EventReader &event) const {
    SlabForm form = formOf(event);
    Matrix weight{.rows = event.integer("out"), .columns = event.integer("in")};
    uint64_t count = uint64_t(sizeOf(form, weight.rows, weight.columns, false).qweight);
    if (count > (uint64_t(1) << 28))
      throw MalformedEvent("the layer is too large to replay");
    auto x = uint32_t(event.integer("seed"));
    double amplitude = event.number("amplitude");
    weight.values.resize(size_t(weight.rows * weight.columns));
    for (float &value : weight.values) {
      x = 1664525u * x + 1013904223u;
      value = float((double(x) / 4294967296.0 * 2 - 1) * amplitude);
    }
    QuantizedLayer layer = quantized(form, weight, config_.scaleSearch);
    Matrix back = weight;
    dequantizeRows(form, layer, 0, weight.rows, back.values);
    return {{"padded_in", layer.size.padded},
            {"q_crc32", crcOf(layer.qweight)},
            {"scale_crc32", crcOf(layer.scale)},
            {"max_err_over_scale_below", greatestError(form, weight, layer)},
            {"requantize_same", quantized(form, back, config_.scaleSearch).qweight == layer.qweight}};
  }

  /// The forms of a layer are in docs/specs/replay.md.
  Json applyServe(EventReader &event) const {
    uint64_t sent = 0, bf16 = 0;
    for (const Json &layer : event.json("layers")) {
      SlabForm form{.padK = config_.padK};
      int64_t out = 0, in = 0;
      bool hasZeroPoints = false;
      if (layer.is_object()) {
        for (const auto &[key, value] : layer.items())
          if (!std::ranges::count(std::initializer_list<std::string_view>{"out", "in", "pad_k", "bias", "zero_point"}, key))
            throw MalformedEvent("a layer has no \"" + key + "\"; out, in, pad_k, bias and zero_point are known");
        out = layer.value("out", int64_t(0));
        in = layer.value("in", int64_t(0));
        form.padK = layer.value("pad_k", config_.padK);
        if (layer.contains("zero_point")) {
          const Json &zeros = layer["zero_point"];
          if (zeros.is_array() && zeros.size() != size_t(out))
            throw MalformedEvent("\"zero_point\" of a layer is a number, or one per row");
          for (const Json &zero : zeros)
            hasZeroPoints |= floatOf(zero) != 0;
        }
      } else if (layer.is_array() && layer.size() == 4 && layer[0].is_string()) {
        in = layer[1];
        out = layer[2];
      } else if (layer.is_array() && (layer.size() == 2 || layer.size() == 3)) {
        out = layer[0];
        in = layer[1];
        form.padK = layer.size() == 3 ? layer[2].get<int64_t>() : config_.padK;
      }
      SlabSize size = sizeOf(form, out, in, false);
      sent += size.sent(hasZeroPoints);
      bf16 += size.bf16;
    }
    return {{"h2d_bytes", sent}, {"bf16_bytes", bf16}, {"saved_bytes", int64_t(bf16) - int64_t(sent)}};
  }

  /// Computes y = x W'ᵀ: sums in f32, the scale once behind them, and the zero point times
  /// the sum of x taken off before; columns of W beyond `in` count as 0, so x need not have
  /// them.
  static Json applyMatmul(EventReader &event) {
    Matrix x = matrixOf(event, "x"), q = matrixOf(event, "qweight");
    std::vector<float> scales = scalesOf(event, q.rows), zeros = zerosOf(event, q.rows);
    int64_t in = event.integer("in", x.columns);
    if (in < 0 || in > x.columns || in > q.columns)
      event.refuse("in", "no more columns than x and qweight have are");
    Json y = Json::array();
    for (int64_t i = 0; i < x.rows; ++i) {
      Json row = Json::array();
      for (int64_t o = 0; o < q.rows; ++o) {
        float sum = 0, sumOfX = 0;
        for (int64_t k = 0; k < in; ++k) {
          sum += x.values[size_t(i * x.columns + k)] * q.values[size_t(o * q.columns + k)];
          sumOfX += x.values[size_t(i * x.columns + k)];
        }
        if (zeros[size_t(o)] != 0)
          sum -= zeros[size_t(o)] * sumOfX;
        row.push_back(double(sum * scales[size_t(o)]));
      }
      y.push_back(row);
    }
    return {{"y", y}};
  }

  ReplayLog log_;
  SquareQConfig config_;
};

} // namespace

static std::unique_ptr<Replayer> createSquareQReplayer(const ReplayLog &log) {
  return std::make_unique<SquareQReplayer>(log);
}

ReplayService replayOfSquareQ() { return {"squareq", createSquareQReplayer}; }

} // namespace segue::tool
