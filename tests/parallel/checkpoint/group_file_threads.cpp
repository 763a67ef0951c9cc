// Files that several ranks write, as threads.
#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <stdexcept>

#include "lockstep/parallel/step/agreement_internal.h"

#include "tests/parallel/checkpoint/group_file.h"

namespace {

// The call that fails on this thread's rank, counted from 0; negative: none.
thread_local int failing_call = -1, calls = 0;
thread_local const char* failed = "";

bool fails(const char* name) {
  if (calls++ != failing_call) return false;
  failed = name;
  errno = ENOSPC;
  return true;
}

ls::FileSystemCalls faulty() {
  ls::FileSystemCalls table = ls::FileSystemCalls::real();
  table.open = [](const char* path, int flags, mode_t mode) {
    return fails("open") ? -1 : ls::FileSystemCalls::real().open(path, flags, mode);
  };
  table.pwrite = [](int fd, const void* data, std::size_t size, off_t offset) {
    return fails("pwrite") ? ssize_t{-1} : ::pwrite(fd, data, size, offset);
  };
  table.fallocate = [](int fd, int mode, off_t offset, off_t size) {
    return fails("fallocate") ? -1 : ::fallocate(fd, mode, offset, size);
  };
  table.fsync = [](int fd) { return fails("fsync") ? -1 : ::fsync(fd); };
  table.rename = [](const char* from, const char* to) { return fails("rename") ? -1 : ::rename(from, to); };
  return table;
}

// The texts of the errors that the ranks get when they save `pieces(rank)`.
std::vector<std::string> errors_of(int size, const std::function<std::vector<Piece>(int rank)>& pieces) {
  std::vector<std::string> texts(static_cast<std::size_t>(size));
  with_group("local", size, [&](const Group& group) {
    texts[static_cast<std::size_t>(group->rank())] =
        error_of([&] { par::save_pieces(pieces(group->rank()), {}, "refused.safetensors", group.get()); });
  });
  return texts;
}

}  // namespace

TEST_CASE("1 to 4 ranks write the bytes that one process writes") { check_group_files("local"); }

TEST_CASE("2 and 4 ranks with slices of matrices write the bytes that one process writes, and read their slices") {
  check_group_files_of_slices("local");
}

TEST_CASE("a system call that fails on one rank is an error on all, which names the rank, and the old file stays") {
  const std::string path = "faults.safetensors";
  const ls::StateDict old = {{"w", ls::zeros({30})}}, fresh = whole_tensors();
  ls::save(old, path);
  const std::string before = content_of_file(path);
  std::map<std::string, int> seen;
  for (const int culprit : {0, 1, 2}) {
    for (int call = 0;; ++call) {
      std::vector<std::string> texts(3);
      std::string name;
      with_group("local", 3, [&](const Group& group) {
        const int rank = group->rank();
        calls = 0;
        failing_call = rank == culprit ? call : -1;
        failed = "";
        texts[static_cast<std::size_t>(rank)] =
            error_of<ls::IoError>([&] { par::save_pieces(cut(fresh, rank, 3), {}, path, group.get(), faulty()); });
        if (rank == culprit) name = failed;
      });
      if (name.empty()) break;
      INFO("rank ", culprit, ", call ", call, ": ", name, ": ", texts[0]);
      ++seen[name];
      const std::string& own = texts[static_cast<std::size_t>(culprit)];
      CHECK(own.starts_with(path + ": "));
      CHECK(own.ends_with("No space left on device"));
      for (int rank = 0; rank < 3; ++rank) {
        if (rank != culprit)
          CHECK(texts[static_cast<std::size_t>(rank)] == "rank " + std::to_string(culprit) + ": " + own);
      }
      const bool is_replaced = contains(own, "replaced, but");  // only the folder's flush failed
      CHECK((content_of_file(path) == before) == !is_replaced);
      CHECK(files_named(path) == 1);
      if (is_replaced) ls::save(old, path);
    }
    CHECK(content_of_file(path) != before);  // the save without a fault
    ls::save(old, path);
  }
  CHECK(seen["open"] == 4);  // the temporary file on each rank, and the folder
  CHECK(seen["fallocate"] == 1);
  CHECK(seen["pwrite"] >= 3);
  CHECK(seen["fsync"] == 5);
  CHECK(seen["rename"] == 1);
}

TEST_CASE("a rank without elements needs no access to the file") {
  const ls::StateDict dict = whole_tensors();
  ls::save(dict, "one.safetensors");
  for (const int writing : {0, 2}) {
    with_group("local", 3, [&](const Group& group) {
      calls = 0;
      failing_call = -1;
      std::vector<Piece> pieces = cut(dict, 0, 1);
      if (group->rank() != writing)
        for (Piece& piece : pieces) piece = {piece.name, piece.part.slice(0, 0, 0), piece.shape, {}};
      par::save_pieces(std::move(pieces), {}, "one_writes.safetensors", group.get(), faulty());
      CHECK((calls > 0) == (group->rank() == writing || group->rank() == 0));
    });
    CHECK(content_of_file("one_writes.safetensors") == content_of_file("one.safetensors"));
  }
}

TEST_CASE("ranks whose pieces do not fit together are refused on all ranks") {
  const ls::Tensor line = numbers({10});
  const auto piece = [&](const std::string& name, std::int64_t first, std::int64_t end) {
    return Piece{name, line.slice(0, first, end), line.shape(),
                 ls::TensorPart::whole(line.shape()).narrow(first, end - first)};
  };
  const auto all_are = [](const std::vector<std::string>& texts, const std::string& part) {
    for (const std::string& text : texts) CHECK_MESSAGE(contains(text, part), text);
  };
  all_are(errors_of(3, [&](int rank) { return std::vector{piece("w", 3 * rank, 3 * rank + 3)}; }),
          "\"w\" (10) f32: 1 elements from 9 on are on no rank");
  all_are(errors_of(3, [&](int rank) { return std::vector{piece("w", 4 * rank, std::min(10, 4 * rank + 3))}; }),
          "\"w\" (10) f32: 1 elements from 3 on are on no rank");
  all_are(errors_of(2, [&](int rank) { return std::vector{piece("w", 5 * rank, 6 + 4 * rank)}; }),
          "\"w\" (10) f32: 1 elements from 5 on are on several ranks");
  all_are(errors_of(2, [&](int) { return std::vector{piece("w", 0, 10)}; }),
          "\"w\" (10) f32: 10 elements from 0 on are on several ranks");
  all_are(errors_of(2, [&](int rank) { return std::vector{piece(rank == 0 ? "w" : "v", 5 * rank, 5 + 5 * rank)}; }),
          "tensor 0 of rank 1 is not that of rank 0");
  all_are(errors_of(2,
                    [&](int rank) {
                      std::vector<Piece> pieces = {piece("w", 5 * rank, 5 + 5 * rank)};
                      if (rank == 1) pieces.push_back(piece("x", 0, 10));
                      return pieces;
                    }),
          "rank 0 has 1 tensors to save, rank 1 has 2");
  const std::vector<std::string> two = errors_of(2, [&](int rank) {
    std::vector<Piece> pieces = {piece("w", 0, 5), piece("w", 5, 10)};
    if (rank == 1) pieces[1].shape = {2, 5};
    return pieces;
  });
  CHECK(two[1] == "save: the entry \"w\" has parts of a tensor (10) f32 and of a tensor (2, 5) f32");
  CHECK(two[0] == "rank 1: " + two[1]);
  all_are(errors_of(1,
                    [&](int) {
                      return std::vector{piece("w", 0, 6), piece("w", 5, 10)};
                    }),
          "\"w\" (10) f32: 1 elements from 5 on are on several ranks");
  const ls::Tensor matrix = numbers({4, 6});
  const auto columns = [&](int dim, int index, int of) {
    return std::vector{Piece{"w", slice_of(matrix, dim, index, of), matrix.shape(),
                             ls::TensorPart::slice(matrix.shape(), dim, index, of)}};
  };
  all_are(errors_of(2, [&](int rank) { return columns(1, rank, 3); }),
          "(4, 6) f32: 2 elements from 4 on are on no rank");
  all_are(errors_of(2, [&](int rank) { return columns(1, 0, rank + 2); }),
          "(4, 6) f32: 2 elements from 0 on are on several ranks");
  all_are(errors_of(2, [&](int rank) { return columns(rank, rank, 2); }), "elements from 3 on are on several ranks");
  const std::vector<std::string> other = errors_of(2, [&](int rank) {
    std::vector<Piece> pieces = columns(1, rank, 2);
    if (rank == 1) pieces[0].place.first = 4;
    return pieces;
  });
  CHECK(other[0] ==
        "rank 1: save: the entry \"w\": elements [0, 12) of runs of 3 at 4, 10, ... of a tensor of shape (4, 6)");
  const std::vector<std::string> short_part = errors_of(2, [&](int rank) {
    std::vector<Piece> pieces = columns(1, rank, 2);
    if (rank == 1) pieces[0].part = pieces[0].part.narrow(0, 0, 3);
    return pieces;
  });
  CHECK(short_part[0] == "rank 1: save: the entry \"w\": 9 elements for a part of 12");
  const std::vector<std::string> one = errors_of(2, [&](int rank) {
    return std::vector{Piece{"w", rank == 1 ? ls::Tensor() : line, line.shape(), ls::TensorPart::whole(line.shape())}};
  });
  CHECK(one[1] == "save: the entry \"w\" is an undefined tensor");
  CHECK(one[0] == "rank 1: " + one[1]);
  CHECK_FALSE(std::filesystem::exists("refused.safetensors"));
}

TEST_CASE("rounds go on until all ranks are done, and an exception in any round ends them on all ranks") {
  with_group("local", 3, [](const Group& group) {
    const int rank = group->rank();
    int rounds = 0;
    par::in_rounds(group.get(), [&] { return ++rounds <= 2 * rank; });
    CHECK(rounds == 2 * rank + 1);

    rounds = 0;
    const auto failing = [&](const auto& error) {
      par::in_rounds(group.get(), [&] {
        if (++rounds == 3 && rank == 1) throw error;
        return true;
      });
    };
    CHECK(error_of([&] { failing(ls::InvalidArgument("no")); }) == (rank == 1 ? "no" : "rank 1: no"));
    CHECK(rounds == 3);
    rounds = 0;
    CHECK(error_of<ls::IoError>([&] { failing(ls::IoError("no")); }) == (rank == 1 ? "no" : "rank 1: no"));
    rounds = 0;
    if (rank == 1)
      CHECK_THROWS_AS(failing(std::runtime_error("other")), std::runtime_error);
    else
      CHECK(error_of<ls::Error>([&] { failing(std::runtime_error("other")); }) == "rank 1: other");
    rounds = 0;
    const std::string text = error_of([&] { failing(ls::InvalidArgument(std::string(290, 'x'))); }).substr(0, 12);
    CHECK(text == (rank == 1 ? "xxxxxxxxxxxx" : "rank 1: xxxx"));
    group->barrier();  // the group is still usable
  });
  int rounds = 0;
  par::in_rounds(nullptr, [&] { return ++rounds < 4; });
  CHECK(rounds == 4);
}
