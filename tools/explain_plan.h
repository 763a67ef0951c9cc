// lockstep-explain plan: the meshes on which a GPT can be trained, by predicted time of a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/explain_plan_costs.h"

struct PlanQuestion {
  plan::Gpt model;
  // Instead of layers, width and heads: those of a GPT of this size, with heads of 64 numbers; 0: none.
  double parameters = 0;
  int ranks = 8, micro_batches = 8;
  std::int64_t sequences = 1;  // of a micro-batch
  double memory_gb = 16;       // of a rank
  std::string link = "100GbE";
  double teraflops = 10;  // of a rank
  std::string profile;    // a file with the times of one device and micro-batch, instead of teraflops
  int shown = 10;         // meshes
};

struct PlannedMesh {
  plan::Mesh mesh;
  plan::Estimate estimate;
};

// Meshes that cannot be used, for one reason.
struct RefusedMeshes {
  std::string why, way_out;
  int count = 0;
};

struct SeenPlan {
  PlanQuestion question;
  plan::Job job;
  std::vector<PlannedMesh> feasible;  // by time of a step; each with its fastest mode that fits
  std::vector<RefusedMeshes> refused;
};

// Throws InvalidArgument for a model without whole heads, and an unknown link; IoError for a file that cannot be read.
plan::Job job_of(const PlanQuestion& question);
// The modes of a mesh: schedules and stages. Empty: the library refuses the mesh.
std::vector<plan::Mesh> modes_of(const plan::Job& job, const plan::Mesh& axes);
SeenPlan plan_of(const PlanQuestion& question);
std::string plan_text(const SeenPlan& seen);
