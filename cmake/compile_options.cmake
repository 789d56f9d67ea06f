# Warnings, floating-point rules and sanitizers that every target of the project is compiled with.
add_library(gyrograd_compile_options INTERFACE)
target_compile_options(gyrograd_compile_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow
  # Each product and each sum is rounded on its own: the promise about bits rests on this flag.
  -ffp-contract=off)
if(GYROGRAD_PORTABLE_ONLY)
  target_compile_definitions(gyrograd_compile_options INTERFACE GYROGRAD_PORTABLE_ONLY=1)
endif()
if(GYROGRAD_SANITIZE)
  target_compile_options(gyrograd_compile_options INTERFACE
    -fsanitize=${GYROGRAD_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  target_link_options(gyrograd_compile_options INTERFACE -fsanitize=${GYROGRAD_SANITIZE})
endif()
if(GYROGRAD_BUILD_FUZZERS)  # what the fuzzers look at to see that an input does something new
  target_compile_options(gyrograd_compile_options INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(gyrograd_compile_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
