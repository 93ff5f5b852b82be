/* Preloaded into processes: writes a line to the file NETWORK_LOG for each look-up of a name, connection and message to
   an address, then does what was asked for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void say(const char *what, const char *name)
{
    const char *path = getenv("NETWORK_LOG");
    char line[512];
    int length = snprintf(line, sizeof line, "%s %s\n", what, name);
    int file = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file < 0)
        return;
    if (write(file, line, length < (int)sizeof line ? length : (int)sizeof line) < 0)
        abort();
    close(file);
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    int (*original)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    *(void **)&original = dlsym(RTLD_NEXT, "getaddrinfo");
    say("getaddrinfo", node ? node : "");
    return original(node, service, hints, found);
}

int connect(int socket, const struct sockaddr *address, socklen_t length)
{
    int (*original)(int, const struct sockaddr *, socklen_t);
    *(void **)&original = dlsym(RTLD_NEXT, "connect");
    say("connect", "");
    return original(socket, address, length);
}

ssize_t sendto(int socket, const void *data, size_t size, int flags, const struct sockaddr *address, socklen_t length)
{
    ssize_t (*original)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    *(void **)&original = dlsym(RTLD_NEXT, "sendto");
    if (address)
        say("sendto", "");
    return original(socket, data, size, flags, address, length);
}
