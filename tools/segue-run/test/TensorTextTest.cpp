//===- TensorTextTest.cpp - tensors on the command line and in .npy -------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "TensorText.h"
#include "NpyFile.h"
#include "Session/ExpectError.h"
#include "Session/TemporaryFolder.h"
#include "segue/runtime/Device/Device.h"
#include <cstring>
#include <gtest/gtest.h>

using namespace segue;
using namespace segue::tool;

static const DeviceRef device = Device::open("cpu");

// A printed tensor is read again to the same bits, for every element type.
TEST(TensorText, RoundTrips) {
  for (const char *text : {"2x3xf32=1,2,3,4,5,0.1", "f32=-1e-45", "3xf32=inf,-inf,3.4028235e+38", "2xbf16=0.5,-3",
                           "2xf16=65504,5.9604645e-08", "2xi64=-9223372036854775808,9223372036854775807", "2xi32=-7,7",
                           "2xi8=-128,127", "2xi1=0,1", "0x4xf32="})
    EXPECT_EQ(formatTensor(parseTensor(device, text)), text);
}

TEST(TensorText, OneValueStandsForAll) {
  EXPECT_EQ(formatTensor(parseTensor(device, "2x2xi32=7")), "2x2xi32=7,7,7,7");
  EXPECT_EQ(formatTensor(parseTensor(device, "3xf32")), "3xf32=0,0,0");
  EXPECT_EQ(formatTensor(parseTensor(device, "9xf32=1"), 2), "9xf32=1,1,...");
}

TEST(TensorText, NamesComeFirst) {
  EXPECT_EQ(splitName("h.0.weight=2xf32=1,2").name, "h.0.weight");
  EXPECT_EQ(splitName("h.0.weight=2xf32=1,2").text, "2xf32=1,2");
  EXPECT_EQ(splitName("2xf32=1,2").name, "");
  EXPECT_EQ(splitName("@a=b.npy").name, "");
  EXPECT_EQ(splitName("x=@a.npy").text, "@a.npy");
}

TEST(TensorText, SaysWhatIsWrong) {
  EXPECT_ERROR(parseTensor(device, "2x3xf33=1"), InvalidArgument, "tensor \"2x3xf33=1\": this is neither a type");
  EXPECT_ERROR(parseTensor(device, "2xf32=1,2,3"), InvalidArgument, "more values than the 2 elements");
  EXPECT_ERROR(parseTensor(device, "3xf32=1,2"), InvalidArgument, "2 values for 3 elements");
  EXPECT_ERROR(parseTensor(device, "2xi8=1,128"), InvalidArgument, "value 1, \"128\", is not an i8");
  EXPECT_ERROR(parseTensor(device, "i32=1.5"), InvalidArgument, "value 0, \"1.5\", is not an i32");
  EXPECT_ERROR(parseTensor(device, "99999999999999999999xf32=1"), InvalidArgument, "neither a type nor a file");
  EXPECT_ERROR(parseTensor(device, "@/nowhere.npy"), IoFailed, "/nowhere.npy: cannot be opened");
}

TEST(Npy, RoundTrips) {
  TemporaryFolder folder;
  for (const char *text : {"2x3xf32=1,2,3,4,5,6", "f32=7", "4xbf16=1,2,3,4", "2xf16=1,2", "2x1xi64=1,-2", "1xi32=3",
                           "3xi8=1,2,3", "2xi1=0,1", "0x4xf32="}) {
    writeNpy(folder / "t.npy", parseTensor(device, text));
    EXPECT_EQ(formatTensor(parseTensor(device, "@" + (folder / "t.npy").string())), text);
  }
}

// The file is as numpy writes it: a version 1 header, and an array in Fortran order.
TEST(Npy, ReadsFortranOrder) {
  TemporaryFolder folder;
  std::string header = "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3), }";
  header.resize(117, ' ');
  header += '\n';
  std::string file = std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header;
  for (int32_t value : {1, 4, 2, 5, 3, 6})
    file.append(reinterpret_cast<const char *>(&value), 4);
  writeText(folder / "t.npy", file);
  EXPECT_EQ(formatTensor(readNpy(device, folder / "t.npy")), "2x3xi32=1,2,3,4,5,6");
}

// Cut at every length, and grown: an error, never an array.
TEST(Npy, RefusesDamage) {
  TemporaryFolder folder;
  writeNpy(folder / "t.npy", parseTensor(device, "2xf32=1,2"));
  std::string whole = readText(folder / "t.npy");
  for (size_t length = 0; length < whole.size(); ++length) {
    writeText(folder / "cut.npy", whole.substr(0, length));
    EXPECT_ERROR(readNpy(device, folder / "cut.npy"), FileCorrupt, "cut.npy: ");
  }
  writeText(folder / "cut.npy", whole + "x");
  EXPECT_ERROR(readNpy(device, folder / "cut.npy"), FileCorrupt, "should have 8 bytes, the file has 9");
  std::string complex = whole;
  complex.replace(complex.find("<f4"), 3, "<c8");
  writeText(folder / "c8.npy", complex);
  EXPECT_ERROR(readNpy(device, folder / "c8.npy"), Unsupported, "arrays of '<c8'");
}
