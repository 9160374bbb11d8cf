// RUN: segue-opt %s --prog-update-in-forward --split-input-file --verify-diagnostics -o /dev/null

// expected-error @below {{`prog-update-in-forward` needs a program `@forward`, but the module has none}}
// expected-error @below {{`prog-update-in-forward` needs a program `@optimizer`, but the module has none}}
module {}

// -----

// expected-error @below {{`prog-update-in-forward` puts updates before the commands of the phase of `@forward`, which has none}}
prog.program @forward inputs [] outputs [] {
}
prog.program @optimizer inputs [] outputs [] {
}

// -----

// expected-error @below {{`prog-update-in-forward` puts updates before the commands of the phase of `@forward`, which has none}}
prog.program @forward inputs [] outputs [] {
  prog.phase forward {
  }
}
prog.program @optimizer inputs [] outputs [] {
}

// -----

prog.program @forward inputs [] outputs [] {
}
prog.program @optimizer inputs [] outputs [] {
}
// expected-error @below {{`prog-update-in-forward` makes `@forward_updating`, but the module has one}}
prog.program @forward_updating inputs [] outputs [] {
}
