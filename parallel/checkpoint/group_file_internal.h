// A safetensors file that the ranks of a group write and read together. Not installed.
#pragma once

#include <string>
#include <vector>

#include "lockstep/nn/files/safetensors_internal.h"
#include "lockstep/parallel/comm/process_group.h"

namespace lockstep::parallel {

// About the number of bytes that a rank processes between two agreements of the ranks (agreement_internal.h).
inline constexpr std::uint64_t kRoundBytes = std::uint64_t{256} << 20;

// Writes the file that `save` writes in one process with all tensors: the ranks' pieces together. All ranks pass
// pieces with the same names, dtypes and whole shapes, and the same metadata. A rank passes one or more pieces of each
// tensor, which may have no elements; the parts of all ranks cover every tensor once. Rank 0 creates the temporary file
// and reserves its space; every rank that has elements writes them; rank 0 computes the checksum from the file, writes
// the header and renames. The file's absolute path on rank 0 must lead every rank that has elements to the same file. A
// null `group` stands for this process alone.
//
// An error on one rank is an error on all ranks, as in_rounds describes: the old file stays, and the temporary one is
// removed. Throws InvalidArgument if the pieces do not fit together, IoError if the file cannot be written, CommError
// if a rank is lost.
void save_pieces(std::vector<nn::safetensors::Piece> pieces, const Metadata& metadata, const std::string& path,
                 ProcessGroup* group, const FileSystemCalls& calls = FileSystemCalls::real());

// Verifies on rank 0 that the payload has the checksum of the header, if there is one, and that all ranks read the same header. Throws
// on all ranks if not.
void check_file(const ByteSource& source, const nn::safetensors::Reader& reader, ProcessGroup* group);

}  // namespace lockstep::parallel
