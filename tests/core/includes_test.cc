// Includes point downwards only: include/gyrograd <- src/core <- src/ops <- src/cpu, src/cann <- python. The witnesses
// see the public headers alone, and no part of the library sees the witnesses.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace gyrograd::testing {
namespace {

namespace fs = std::filesystem;

// What the files of a folder may include, by the first folder of the include's path. Headers of the system and of other
// projects are not in question.
const std::map<std::string, std::set<std::string>> kAllowed = {
    {"include/gyrograd", {"gyrograd"}},
    {"include/cann", {"acl", "aclnn", "aclnnop"}},
    {"src/core", {"gyrograd", "core"}},
    {"src/ops", {"gyrograd", "core", "ops"}},
    {"src/cpu", {"gyrograd", "core", "ops", "cpu"}},
    {"src/cann", {"gyrograd", "core", "ops", "cann", "acl", "aclnn", "aclnnop"}},
    {"problems", {"gyrograd", "problems"}},
    {"reference", {"gyrograd", "reference"}},
};

// The folders that are the project's own.
const std::set<std::string> kOwn = {"gyrograd", "core",      "ops", "cpu",     "cann",  "acl",    "aclnn", "aclnnop",
                                    "problems", "reference", "src", "include", "tests", "python", "bench"};

// The folder of kAllowed that `path` lies in; empty if none.
std::string FolderOf(const std::string& path) {
  for (const auto& [folder, allowed] : kAllowed) {
    if (path.rfind(folder + "/", 0) == 0) return folder;
  }
  return "";
}

// Why `path` must not include `target`; empty if it may.
std::string Violation(const std::string& path, const std::string& target) {
  const std::string folder = FolderOf(path);
  if (folder.empty()) return path + " lies in no known folder";
  if (target.find("..") != std::string::npos) return path + " includes by a relative path: " + target;
  const std::string first = target.substr(0, target.find('/'));
  if (first == target || kOwn.count(first) == 0) return "";
  if (kAllowed.at(folder).count(first) == 0) return path + " includes " + target;
  return "";
}

// What an include line names; empty for any other line.
std::string IncludeOf(const std::string& line) {
  const std::size_t hash = line.find_first_not_of(" \t");
  if (hash == std::string::npos || line[hash] != '#') return "";
  const std::size_t word = line.find_first_not_of(" \t", hash + 1);
  if (word == std::string::npos || line.compare(word, 7, "include") != 0) return "";
  const std::size_t open = line.find_first_of("<\"", word);
  const std::size_t close = open == std::string::npos ? open : line.find_first_of(">\"", open + 1);
  return close == std::string::npos ? "" : line.substr(open + 1, close - open - 1);
}

std::vector<std::string> IncludesOf(const fs::path& file) {
  std::vector<std::string> includes;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (const std::string target = IncludeOf(line); !target.empty()) includes.push_back(target);
  }
  return includes;
}

bool IsSource(const fs::path& file) {
  const std::string extension = file.extension().string();
  return extension == ".h" || extension == ".cc" || extension == ".c";
}

TEST(Includes, PointDownwards) {
  const fs::path root = GYROGRAD_SOURCE_DIR;
  int includes = 0;
  for (const char* const folder : {"include", "src", "problems", "reference"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
      const std::string path = fs::relative(entry.path(), root).generic_string();
      for (const std::string& target : IncludesOf(entry.path())) {
        ++includes;
        EXPECT_EQ(Violation(path, target), "");
      }
    }
  }
  EXPECT_GT(includes, 50);
}

// A quoted include of a plain name would hide a folder from the rule.
TEST(Includes, NameTheirFolder) {
  const fs::path root = GYROGRAD_SOURCE_DIR;
  for (const char* const folder : {"include/gyrograd", "src", "problems", "reference"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        if (line.rfind("#include \"", 0) == 0) {
          EXPECT_NE(line.find('/'), std::string::npos) << entry.path() << ": " << line;
        }
      }
    }
  }
}

TEST(Includes, LinesAreRead) {
  EXPECT_EQ(IncludeOf("#include \"core/strides.h\"  // why"), "core/strides.h");
  EXPECT_EQ(IncludeOf("  #  include <vector>"), "vector");
  EXPECT_EQ(IncludeOf("// #include <vector>"), "");
  EXPECT_EQ(IncludeOf("#define INCLUDE \"a.h\""), "");
}

TEST(Includes, TheRuleSeesUpwardOnes) {
  EXPECT_NE(Violation("include/gyrograd/rotary.h", "core/strides.h"), "");
  EXPECT_NE(Violation("src/core/strides.cc", "ops/rotary/plan.h"), "");
  EXPECT_NE(Violation("src/core/strides.cc", "cpu/targets.h"), "");
  EXPECT_NE(Violation("src/ops/rotary/operator.cc", "cpu/targets.h"), "");
  EXPECT_NE(Violation("src/ops/rotary/operator.cc", "cann/guard.h"), "");
  EXPECT_NE(Violation("src/cpu/rotary.cc", "cann/guard.h"), "");
  EXPECT_NE(Violation("src/cpu/rotary.cc", "reference/rotary.h"), "");
  EXPECT_NE(Violation("src/cann/rotary.cc", "cpu/targets.h"), "");
  EXPECT_NE(Violation("src/core/strides.cc", "../ops/rotary/plan.h"), "");
  EXPECT_NE(Violation("src/core/strides.cc", "src/core/strides.h"), "");
  EXPECT_NE(Violation("reference/rotary.cc", "core/dtype.h"), "");
  EXPECT_NE(Violation("src/new/file.cc", "gyrograd/status.h"), "");
  EXPECT_EQ(Violation("src/ops/rotary/operator.cc", "ops/rotary/kernels.h"), "");
  EXPECT_EQ(Violation("src/cpu/rotary.cc", "hwy/highway.h"), "");
  EXPECT_EQ(Violation("src/core/status.cc", "gyrograd/status.h"), "");
  EXPECT_EQ(Violation("reference/rotary.cc", "cmath"), "");
}

}  // namespace
}  // namespace gyrograd::testing
