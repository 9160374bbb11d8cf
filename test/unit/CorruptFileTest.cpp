//===- CorruptFileTest.cpp - hostile files --------------------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// The importer against a file cut at every length and changed in every byte.
// Under its own hash every change is found; when the hash is made right again
// the importer must answer, with a verified module or with an error.
//
//===----------------------------------------------------------------------===//

#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "segue/Dialect/Prog/IR/ProgDialect.h"
#include "segue/Target/FlatBuffer/FlatBuffer.h"
#include "llvm/Support/xxhash.h"
#include <cstring>
#include <gtest/gtest.h>

using namespace mlir;

static constexpr const char *kModule = R"(
module attributes {prog.options = {name = "m"}, prog.producer = "test", prog.version = array<i32: 0, 1>} {
  prog.segment @segment0 constants alignment 64 dense<[1, 2, 3, 4]> : tensor<4xi8>
  prog.segment @segment1 elf alignment 64 dense<[5, 6]> : tensor<2xi8>
  prog.kernel @k arguments 3 outputs 1 fixed_bytes [4, 0, 0] bytes_per_unit [0, 4, 4] hash 9
    variants [#prog.variant<x86_64_v3 "k.v3" in @segment1>]
  prog.program @p inputs [#prog.value<"x" saved tensor<1x4x8xf32>>]
      outputs [#prog.value<"y" gradient tensor<1x4x8xf32, #segue.layout<strides = [32, 8, 1]>> of "x">]
      arenas [#prog.arena<device_dram bytes = 128 lower_bound = 128 alignment = 64>] {
  ^bb0(%x: memref<1x4x8xf32>, %y: memref<1x4x8xf32>):
    %t = prog.alloc offset 0 : memref<128xi8>
    %c = prog.constant @segment0 offset 0 : memref<4xi8>
    prog.phase backward {
      prog.restore %x : memref<1x4x8xf32>
      prog.block "h.0" {
        prog.launch @k(%c, %x, %t) range 32 grain 8 : memref<4xi8>, memref<1x4x8xf32>, memref<128xi8>
        %a = prog.view %t offset 0 : memref<128xi8> to memref<1x4x4xf32>
        prog.matmul %a, %x into %y : memref<1x4x4xf32>, memref<1x4x8xf32>, memref<1x4x8xf32>
        prog.free %x : memref<1x4x8xf32>
      }
    }
  }
})";

namespace {
class CorruptFile : public testing::Test {
protected:
  CorruptFile() : context(registry(), MLIRContext::Threading::DISABLED) {
    handler = std::make_unique<ScopedDiagnosticHandler>(&context, [this](Diagnostic &) { ++errors; });
    OwningOpRef<ModuleOp> module = parseSourceString<ModuleOp>(kModule, &context);
    llvm::raw_string_ostream os(file);
    EXPECT_TRUE(module && succeeded(segue::exportBinary(*module, os)));
  }

  static DialectRegistry registry() {
    DialectRegistry registry;
    registry.insert<segue::prog::ProgDialect>();
    return registry;
  }

  /// Gives `bytes` the hash that its trailer should say.
  static void sign(std::string &bytes) {
    size_t body = bytes.size() - 32;
    uint64_t hash = llvm::xxh3_64bits(llvm::StringRef(bytes.data(), body));
    std::memcpy(bytes.data() + body, &hash, sizeof(hash));
  }

  MLIRContext context;
  std::unique_ptr<ScopedDiagnosticHandler> handler;
  unsigned errors = 0;
  std::string file;
};
} // namespace

TEST_F(CorruptFile, ImportsAsItIs) { EXPECT_TRUE(segue::importBinary(file, &context)); }

TEST_F(CorruptFile, IsRefusedCutAtEveryLength) {
  for (size_t size = 0; size < file.size(); ++size) {
    unsigned before = errors;
    EXPECT_FALSE(segue::importBinary(llvm::StringRef(file).take_front(size), &context)) << size;
    EXPECT_GT(errors, before) << size;
  }
}

TEST_F(CorruptFile, IsRefusedWithAnyByteChanged) {
  for (size_t at = 0; at < file.size(); ++at) {
    std::string changed = file;
    changed[at] ^= 0x40;
    unsigned before = errors;
    EXPECT_FALSE(segue::importBinary(changed, &context)) << at;
    EXPECT_GT(errors, before) << at;
  }
}

TEST_F(CorruptFile, GetsAnAnswerUnderTheRightHash) {
  unsigned accepted = 0;
  for (size_t at = 0; at < file.size() - 32; ++at)
    for (unsigned char mask : {0x01, 0x80, 0xff}) {
      std::string changed = file;
      changed[at] ^= mask;
      sign(changed);
      unsigned before = errors;
      OwningOpRef<ModuleOp> module = segue::importBinary(changed, &context);
      if (module) {
        ++accepted;
        EXPECT_TRUE(succeeded(verify(*module))) << at;
      } else {
        EXPECT_GT(errors, before) << at;
      }
    }
  // Names, padding and hashes may change freely; most bytes may not.
  EXPECT_LT(accepted, 3 * file.size() / 2);
}
