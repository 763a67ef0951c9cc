// The functions of OpenSSL 3, which is opened on first use: programs whose ranks are on one host do not load its five
// megabytes. crypto.cpp and tls.cpp call them by their own names.
#pragma once

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>

namespace lockstep::parallel {

struct OpenSsl {
#define OPENSSL(name) decltype(&::name) name;
#include "lockstep/parallel/rendezvous/openssl.def"
#undef OPENSSL
};

// Opens libssl and libcrypto, which then stay open. Throws NotBuilt if they cannot be opened, or lack a function.
const OpenSsl& openssl();

// Throws CommError if a function of OpenSSL that needs only memory has failed. `what` is for the message.
void require_openssl(bool succeeded, const char* what);

}  // namespace lockstep::parallel
