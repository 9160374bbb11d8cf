//===- Errors.cpp - C++ errors become Python exceptions -------------------===//
//
// Licensed under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//===----------------------------------------------------------------------===//

#include "Errors.h"
#include "segue/runtime/Error.h"

namespace nb = nanobind;

void segue::python::setPythonError(std::string_view code, std::string_view message) {
  nb::object error = nb::module_::import_("segue.errors")
                         .attr("from_code")(nb::str(code.data(), code.size()), nb::str(message.data(), message.size()));
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
}

void segue::python::registerErrorTranslator() {
  nb::register_exception_translator([](const std::exception_ptr &pointer, void *) {
    try {
      std::rethrow_exception(pointer);
    } catch (const segue::Error &error) {
      setPythonError(errorCodeName(error.code()), error.what());
    }
  });
}
