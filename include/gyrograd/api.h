// GYROGRAD_API marks the symbols that libgyrograd exports; everything else is hidden.
#ifndef GYROGRAD_API_H_
#define GYROGRAD_API_H_

#if defined(_WIN32)
#define GYROGRAD_API
#else
#define GYROGRAD_API __attribute__((visibility("default")))
#endif

#endif  // GYROGRAD_API_H_
