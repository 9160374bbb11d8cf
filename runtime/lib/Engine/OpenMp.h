//===- OpenMp.h - what the runtime asks of OpenMP ---------------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// oneDNN takes its threads from OpenMP. The runtime has threads of its own (ThreadPool.h), tells oneDNN
// to use one, and lets the number that the user gave to OpenMP be its own default. These
// are functions of the library that oneDNN brings: no code is compiled for OpenMP.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_RUNTIME_LIB_ENGINE_OPENMP_H
#define SEGUE_RUNTIME_LIB_ENGINE_OPENMP_H

extern "C" {
/// The number of threads of the next region of the calling thread: by default OMP_NUM_THREADS, or as many as
/// the process may run on.
int omp_get_max_threads();
void omp_set_num_threads(int count);
}

#endif // SEGUE_RUNTIME_LIB_ENGINE_OPENMP_H
