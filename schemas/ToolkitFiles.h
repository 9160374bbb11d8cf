//===- ToolkitFiles.h - where files of a CUDA toolkit lie -------*- C++ -*-===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//
//
// Nothing of a toolkit is needed to build. What is used where it is there, ptxas by the
// compiler and cuBLASLt by the runtime, is looked for at run time, in the wheels of NVIDIA
// among other places.
//
//===----------------------------------------------------------------------===//

#ifndef SEGUE_SCHEMAS_TOOLKITFILES_H
#define SEGUE_SCHEMAS_TOOLKITFILES_H

#include <cstdlib>
#include <dlfcn.h>
#include <glob.h>
#include <initializer_list>
#include <string>
#include <unistd.h>
#include <vector>

namespace segue::schema {

/// Returns files of NVIDIA's wheels beside the package of Segue that holds the code at
/// `ofPackage`, then those of the virtual environment. `patterns` are relative to the folder of
/// packages; those that match come in their order, and the files of one in that of their names.
inline std::vector<std::string> filesOfWheels(const void *ofPackage, std::initializer_list<const char *> patterns) {
  std::vector<std::string> files, roots;
  Dl_info self{};
  if (dladdr(ofPackage, &self) && self.dli_fname)
    if (std::string path = self.dli_fname; path.find('/') != std::string::npos)
      roots.push_back(path.substr(0, path.rfind('/')) + "/..");
  if (const char *environment = std::getenv("VIRTUAL_ENV"))
    roots.push_back(environment + std::string("/lib/python3*/site-packages"));
  for (const std::string &root : roots)
    for (const char *pattern : patterns) {
      glob_t found{};
      if (glob((root + "/" + pattern).c_str(), 0, nullptr, &found) == 0)
        files.insert(files.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
      globfree(&found);
    }
  return files;
}

/// Returns the path of ptxas: the file that SEGUE_PTXAS names in the environment, or the first
/// in the folders of PATH, in those of a toolkit (CUDA_HOME, CUDA_PATH) and in wheels. Empty
/// where there is none.
inline std::string findPtxas(const void *ofPackage) {
  auto isProgram = [](const std::string &file) { return access(file.c_str(), X_OK) == 0; };
  if (const char *named = std::getenv("SEGUE_PTXAS"))
    return isProgram(named) ? named : "";
  std::vector<std::string> files;
  if (const char *path = std::getenv("PATH"))
    for (std::string rest = path; !rest.empty();) {
      std::string folder = rest.substr(0, rest.find(':'));
      rest.erase(0, folder.size() + 1);
      if (!folder.empty() && folder.front() == '/')
        files.push_back(folder + "/ptxas");
    }
  for (const char *toolkit : {"CUDA_HOME", "CUDA_PATH"})
    if (const char *folder = std::getenv(toolkit); folder && *folder)
      files.push_back(folder + std::string("/bin/ptxas"));
  for (std::string &file : filesOfWheels(ofPackage, {"nvidia/cu13/bin/ptxas", "nvidia/cuda_nvcc/bin/ptxas"}))
    files.push_back(std::move(file));
  for (const std::string &file : files)
    if (isProgram(file))
      return file;
  return "";
}

/// The message for who asks for cubins where findPtxas finds nothing.
inline constexpr const char *kNoPtxas =
    "cubins need ptxas, and there is none; install it (pip install nvidia-cuda-nvcc==13.0.88, or a CUDA toolkit), and "
    "put its folder into PATH, that of the toolkit into CUDA_HOME, or the file into SEGUE_PTXAS";

} // namespace segue::schema

#endif // SEGUE_SCHEMAS_TOOLKITFILES_H
