# What `cmake --install` lays down: headers, libraries, the CMake package `gyrograd` and the pkg-config files. All of it
# finds its prefix from its own place, so an installed tree may be moved.
include(CMakePackageConfigHelpers)

set(gyrograd_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/gyrograd)
set(gyrograd_pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The folders that this install makes, noted before it makes them: `uninstall` removes them again, and no others.
if(PROJECT_IS_TOP_LEVEL)
  file(GLOB_RECURSE gyrograd_folders LIST_DIRECTORIES true RELATIVE ${PROJECT_SOURCE_DIR}/include/cann
    ${PROJECT_SOURCE_DIR}/include/cann/*)
  list(FILTER gyrograd_folders EXCLUDE REGEX "\\.h$")
  list(TRANSFORM gyrograd_folders PREPEND ${CMAKE_INSTALL_INCLUDEDIR}/gyrograd-cann/)
  list(APPEND gyrograd_folders ${CMAKE_INSTALL_INCLUDEDIR}/gyrograd ${gyrograd_cmake_dir} ${gyrograd_pkgconfig_dir})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/note_folders.cmake.in ${PROJECT_BINARY_DIR}/install/note_folders.cmake
    @ONLY)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/uninstall.cmake.in ${PROJECT_BINARY_DIR}/install/uninstall.cmake @ONLY)
  install(SCRIPT ${PROJECT_BINARY_DIR}/install/note_folders.cmake)
  add_custom_target(uninstall COMMAND ${CMAKE_COMMAND} -P ${PROJECT_BINARY_DIR}/install/uninstall.cmake VERBATIM)
endif()

install(TARGETS gyrograd EXPORT gyrograd
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/gyrograd DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")

if(GYROGRAD_BUILD_CANN)
  # libgyrograd_cann finds libgyrograd beside itself.
  set_target_properties(gyrograd_cann PROPERTIES EXPORT_NAME cann INSTALL_RPATH "$ORIGIN")
  install(TARGETS gyrograd_cann EXPORT gyrograd
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # A folder of their own: a system may have its own acl/.
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/cann/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/gyrograd-cann
    FILES_MATCHING PATTERN "*.h")
endif()

install(EXPORT gyrograd NAMESPACE gyrograd:: FILE gyrogradTargets.cmake DESTINATION ${gyrograd_cmake_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/gyrogradConfig.cmake.in
  ${PROJECT_BINARY_DIR}/install/gyrogradConfig.cmake INSTALL_DESTINATION ${gyrograd_cmake_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/install/gyrogradConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/install/gyrogradConfig.cmake
  ${PROJECT_BINARY_DIR}/install/gyrogradConfigVersion.cmake
  DESTINATION ${gyrograd_cmake_dir})

# The way from the pkg-config folder up to the prefix, such as ../..
file(RELATIVE_PATH gyrograd_pkgconfig_to_prefix /prefix/${gyrograd_pkgconfig_dir} /prefix)
string(REGEX REPLACE "/$" "" gyrograd_pkgconfig_to_prefix "${gyrograd_pkgconfig_to_prefix}")
function(gyrograd_install_pkgconfig name)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/install/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/install/${name}.pc DESTINATION ${gyrograd_pkgconfig_dir})
endfunction()
gyrograd_install_pkgconfig(gyrograd)
if(GYROGRAD_BUILD_CANN)
  gyrograd_install_pkgconfig(gyrograd-cann)
endif()
