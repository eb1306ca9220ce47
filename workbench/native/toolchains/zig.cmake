# Clang, libc++ and the system headers of the PyPI package `ziglang`, for LES_TARGET, such as aarch64-linux-musl,
# and LES_CPU in zig's spelling, such as generic+v8_2a+dotprod. LES_ZIG: its program; else asked of `python3`.
if(NOT LES_ZIG)
    find_package(Python3 COMPONENTS Interpreter)
    execute_process(COMMAND ${Python3_EXECUTABLE} -c "import ziglang; print(ziglang.__path__[0])"
                    OUTPUT_VARIABLE zig_folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "cross-compiling needs the Python package ziglang: `uv sync --group device-test`, or name its "
                            "program with -DLES_ZIG=")
    endif()
    set(LES_ZIG ${zig_folder}/zig CACHE FILEPATH "the zig program")
endif()
if(NOT LES_ZIG_VERSION)
    execute_process(COMMAND ${LES_ZIG} version OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE)
    set(LES_ZIG_VERSION ${version} CACHE STRING "version of zig")
endif()
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES LES_ZIG LES_ZIG_VERSION LES_TARGET LES_CPU)

string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "${LES_TARGET}")
if(LES_TARGET MATCHES "macos")
    set(CMAKE_SYSTEM_NAME Darwin)
    set(CMAKE_SYSTEM_PROCESSOR arm64)
    set(CMAKE_OSX_SYSROOT "")  # the headers are zig's own
    set(CMAKE_INSTALL_NAME_TOOL true)  # CMake asks for one; nothing shared is made
    set(format "--format=bsd")  # zig's linker loses its place in Darwin's archives
else()
    set(CMAKE_SYSTEM_NAME Linux)
    # musl gives threads 128 KiB unless the program says otherwise
    set(CMAKE_EXE_LINKER_FLAGS_INIT "-static -s -Wl,-z,stack-size=2097152")
endif()
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)  # a first link makes zig build its libc: once is enough, at the end

set(CMAKE_C_COMPILER ${LES_ZIG} cc)
set(CMAKE_CXX_COMPILER ${LES_ZIG} c++)
foreach(lang C CXX)
    set(CMAKE_${lang}_COMPILER_TARGET ${LES_TARGET})
    set(CMAKE_${lang}_FLAGS_INIT "-mcpu=${LES_CPU} -fno-sanitize=undefined")  # zig adds the sanitizer by itself
    set(CMAKE_${lang}_ARCHIVE_CREATE "\"${LES_ZIG}\" ar ${format} qc <TARGET> <OBJECTS>")
    set(CMAKE_${lang}_ARCHIVE_APPEND "\"${LES_ZIG}\" ar ${format} q <TARGET> <OBJECTS>")
    set(CMAKE_${lang}_ARCHIVE_FINISH "\"${LES_ZIG}\" ranlib <TARGET>")
endforeach()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
