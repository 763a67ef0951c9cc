#include "lockstep/parallel/rendezvous/limits_internal.h"
#include "lockstep/parallel/rendezvous/place_internal.h"
#include "lockstep/tensor/byte_reader_internal.h"
#include "lockstep/tensor/check_internal.h"
#include "lockstep/tensor/environment_internal.h"

namespace lockstep::parallel {

namespace {

int to_number(const RendezvousOptions& options, const char* what, const std::string& text, int low, int high) {
  return parse_number(fmt::format("init_process_group: init_method {}: {}", in_quotes(options.init_method), what), text,
                      low, high);
}

// "rank=0&world_size=2".
void read_query(const RendezvousOptions& options, const std::string& query, Url& url) {
  for (std::size_t begin = 0; begin < query.size();) {
    const std::size_t end = std::min(query.find('&', begin), query.size());
    const std::string part = query.substr(begin, end - begin);
    const std::size_t equal = std::min(part.find('='), part.size());
    const std::string name = part.substr(0, equal), value = part.substr(std::min(equal + 1, part.size()));
    LOCKSTEP_CHECK(name == "rank" || name == "world_size",
                   "init_process_group: init_method {}: unknown {}; expected rank=... and world_size=...",
                   in_quotes(options.init_method), in_quotes(name));
    int& number = name == "rank" ? url.rank : url.world_size;
    if (number < 0) number = to_number(options, name.c_str(), value, 0, kMaxRanks);
    begin = end + 1;
  }
}

void read_host(const RendezvousOptions& options, const std::string& text, Url& url) {
  const std::size_t colon = text.rfind(':');
  LOCKSTEP_CHECK(colon != std::string::npos && colon > 0 && text.find(']', colon) == std::string::npos,
                 "init_process_group: init_method {}: expected tcp://host:port", in_quotes(options.init_method));
  url.host = text.substr(0, colon);
  if (url.host.starts_with('[') && url.host.ends_with(']')) url.host = url.host.substr(1, url.host.size() - 2);
  url.port = to_number(options, "the port", text.substr(colon + 1), 1, 65535);
}

}  // namespace

Url read_url(const RendezvousOptions& options) {
  const std::string& text = options.init_method;
  const std::size_t colon = text.find("://");
  Url url{.scheme = text.substr(0, colon), .rank = options.rank, .world_size = options.world_size};
  const bool is_known = url.scheme == "env" || url.scheme == "tcp" || url.scheme == "file" || url.scheme == "mpi";
  LOCKSTEP_CHECK(colon != std::string::npos && is_known,
                 "init_process_group: init_method {} is none of env://, tcp://host:port, file:///path and mpi://",
                 in_quotes(text));
  const std::string rest = text.substr(colon + 3);
  const std::size_t query = std::min(rest.find('?'), rest.size());
  const std::string place = rest.substr(0, query);
  read_query(options, rest.substr(std::min(query + 1, rest.size())), url);
  if (url.scheme == "tcp") read_host(options, place, url);
  if (url.scheme == "file") {
    LOCKSTEP_CHECK(place.starts_with('/'), "init_process_group: init_method {}: expected file:///path, an absolute one",
                   in_quotes(text));
    url.path = place;
  }
  if (url.scheme == "env" || url.scheme == "mpi")
    LOCKSTEP_CHECK(place.empty(), "init_process_group: init_method {}: nothing may follow {}://", in_quotes(text),
                   url.scheme);
  return url;
}

Place place_from_url(const RendezvousOptions& options, const Url& url) {
  LOCKSTEP_CHECK(url.rank >= 0 && url.world_size >= 0,
                 "init_process_group: {} needs .rank and .world_size (or ?rank=0&world_size=2 behind the port)",
                 in_quotes(options.init_method));
  check_place(url.rank, url.world_size);
  Place place{.rank = url.rank, .size = url.world_size};
  place.is_one_host = is_loopback(url.host);
  place.host = url.host;
  place.port = url.port;
  place.port_name = fmt::format("port {} of {}", url.port, url.host);
  place.authenticate = options.authenticate;
  place.address = fmt::format("{}:{}", place.is_one_host ? "127.0.0.1" : url.host, url.port);
  place.store_name = options.group_name;
  set_socket(place, options, environment("LOCKSTEP_JOB_TOKEN").value_or(""));
  return place;
}

std::string first_host(const std::string& list) {
  const std::size_t end = std::min(list.find_first_of(",["), list.size());
  std::string host = list.substr(0, end);
  if (end < list.size() && list[end] == '[') host += list.substr(end + 1, list.find_first_of(",-]", end + 1) - end - 1);
  return host;
}

}  // namespace lockstep::parallel
