/* truth: a chat-completions server that keeps to a timetable and tells when it really sent what.
 *
 *     cc -O2 -o truth truth.c && ./truth MODEL
 *
 * One thread. It serves on a free port of 127.0.0.1, prints {"port": N, "realtime": true} and ends when its stdin closes.
 *   POST .../chat/completions  answers by the schedule in the request's model, or by the one in MODEL if that has none
 *   GET  .../models            lists MODEL
 *   GET  /truth                one JSON line for each request that ended since this was last asked:
 *                              {"key", "arrived", "events": [[kind, due, before send(), after it, tokens], ...]}
 * All times are nanoseconds of CLOCK_MONOTONIC, which is also the clock of Python's time.monotonic_ns.
 *
 * A schedule stands behind the slash of a model, as in truth/ttft=100-400,itl=20,tokens=50:
 *   ttft=LOW-HIGH     ms from the last byte of the request to the first token, uniform between both; or one number
 *   itl=MS            between chunks; with jitter=SHARE uniform in MS * (1 - SHARE) to MS * (1 + SHARE)
 *   tokens=N, pack=N  tokens in all, and in each chunk
 *   grid=MS           chunks wait for the next multiple of so many ms, as if all streams shared the steps of an engine
 *   kind=content|reasoning|tool_call; of `reasoning` only the first half of the tokens is, the rest is content
 *   role=0|1          whether a chunk with nothing but the role comes right before the first token
 *   tail=MS           from the last token to finish_reason, usage (where it is asked for) and [DONE]
 * key=NAME, anywhere in the body of a request, is its name in /truth and the seed of its times.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

typedef int64_t ns;
#define MS 1e6
#define MOST_TOKENS 10000
#define MOST_PACKED 256

enum kind { ROLE, CONTENT, REASONING, TOOL_CALL, FINISH, USAGE, DONE, ANSWER };
static const char *const KINDS[] = {"role", "content", "reasoning", "tool_call", "finish", "usage", "done", "answer"};

struct schedule { double ttft[2], itl, jitter, grid, tail; int tokens, pack; bool role; enum kind kind; };
struct event { enum kind kind; int tokens; ns due, before, after; };
struct request { char key[64]; ns arrived; bool ended; int planned, sent; struct event *events; };
struct connection {
    int fd;
    bool gone;                   /* no more can be sent; it goes when epoll says so */
    char *in; size_t size, room; /* what came and is not answered yet */
    struct request *request;     /* that is being answered */
    uint64_t random; int tokens; /* of that request */
    ns due; int place;           /* of its next event; in the heap, -1 outside */
};

static const char *model, *usual; /* what is listed, and the schedule in it */
static int poller;
static struct connection **heap; static int heap_size, heap_room;
static struct request **requests; static int request_count, request_room;

static ns now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ---------------------------------------------------------------- the heap of connections, the one that is due first on top */

static void settle(int place, struct connection *c) { heap[place] = c; c->place = place; }

static void sift(int place, struct connection *c) {
    for (; place && heap[(place - 1) / 2]->due > c->due; place = (place - 1) / 2) settle(place, heap[(place - 1) / 2]);
    for (int child; (child = 2 * place + 1) < heap_size; place = child) {
        if (child + 1 < heap_size && heap[child + 1]->due < heap[child]->due) child++;
        if (heap[child]->due >= c->due) break;
        settle(place, heap[child]);
    }
    settle(place, c);
}

static void wake_at(struct connection *c, ns due) {
    if (heap_size == heap_room) heap = realloc(heap, (heap_room = heap_room * 2 + 64) * sizeof *heap);
    c->due = due;
    sift(heap_size++, c);
}

static void wake_never(struct connection *c) {
    if (c->place < 0) return;
    struct connection *last = heap[--heap_size];
    if (last != c) sift(c->place, last);
    c->place = -1;
}

/* ---------------------------------------------------------------- schedules */

static double uniform(struct connection *c) { /* xorshift64; 0 to 1 */
    c->random ^= c->random << 13; c->random ^= c->random >> 7; c->random ^= c->random << 17;
    return (c->random >> 11) * 0x1p-53;
}

static uint64_t seed(const char *text) { /* FNV-1a; never 0 */
    uint64_t hash = 0xcbf29ce484222325;
    while (*text) hash = (hash ^ (unsigned char)*text++) * 0x100000001b3;
    return hash | 1;
}

static struct schedule parse(const char *text) {
    struct schedule s = {.ttft = {0, 0}, .tail = 1, .tokens = 16, .pack = 1, .role = true, .kind = CONTENT};
    for (const char *at = text; *at; at += strcspn(at, ","), at += *at == ',') {
        char name[16] = "", value[32] = "";
        if (sscanf(at, "%15[a-z]=%31[^,]", name, value) == 2) {
            double number = atof(value);
            const char *high = strchr(value, '-');
            if (!strcmp(name, "ttft")) s.ttft[0] = number, s.ttft[1] = high ? atof(high + 1) : number;
            else if (!strcmp(name, "itl")) s.itl = number;
            else if (!strcmp(name, "jitter")) s.jitter = number;
            else if (!strcmp(name, "grid")) s.grid = number;
            else if (!strcmp(name, "tail")) s.tail = number;
            else if (!strcmp(name, "tokens")) s.tokens = number < 1 ? 1 : number > MOST_TOKENS ? MOST_TOKENS : number;
            else if (!strcmp(name, "pack")) s.pack = number < 1 ? 1 : number > MOST_PACKED ? MOST_PACKED : number;
            else if (!strcmp(name, "role")) s.role = number != 0;
            else if (!strcmp(name, "kind")) s.kind = *value == 'r' ? REASONING : *value == 't' ? TOOL_CALL : CONTENT;
        }
    }
    return s;
}

static void plan_event(struct request *r, enum kind kind, int tokens, ns due) {
    r->events[r->planned++] = (struct event){.kind = kind, .tokens = tokens, .due = due};
}

static void plan(struct connection *c, struct schedule s, bool streamed, bool usage) {
    struct request *r = c->request;
    int left = c->tokens = s.tokens;
    double at = r->arrived + MS * (s.ttft[0] + (s.ttft[1] - s.ttft[0]) * uniform(c));
    ns step = MS * s.grid, due = at;
    r->events = calloc(s.tokens + 5, sizeof *r->events);
    for (bool first = true; left; first = false) {
        int tokens = left < s.pack ? left : s.pack;
        enum kind kind = s.kind == REASONING && left <= s.tokens / 2 ? CONTENT : s.kind;
        if (!first) at += MS * s.itl * (1 + s.jitter * (2 * uniform(c) - 1));
        due = step > 0 ? ((ns)at + step - 1) / step * step : (ns)at;
        if (streamed && first && s.role) plan_event(r, ROLE, 0, due);
        if (streamed) plan_event(r, kind, tokens, due);
        left -= tokens;
    }
    if (!streamed) { plan_event(r, ANSWER, s.tokens, due); return; }
    due += MS * s.tail;
    plan_event(r, FINISH, 0, due);
    if (usage) plan_event(r, USAGE, 0, due);
    plan_event(r, DONE, 0, due);
}

/* ---------------------------------------------------------------- what is sent */

static void put(struct connection *c, const char *data, size_t size) {
    while (size && !c->gone) {
        ssize_t sent = send(c->fd, data, size, MSG_NOSIGNAL);
        if (sent >= 0) { data += sent; size -= sent; continue; }
        struct pollfd full = {c->fd, POLLOUT, 0};
        if (errno == EAGAIN && poll(&full, 1, 5000) > 0) continue; /* a peer that does not read makes everyone late, which shows */
        c->gone = true;
        shutdown(c->fd, SHUT_RDWR);
    }
}

static void put_whole(struct connection *c, int status, const char *body, size_t size) {
    char head[128];
    put(c, head, sprintf(head, "HTTP/1.1 %d -\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", status, size));
    put(c, body, size);
}

static int words(char *out, const char *word, int count) {
    char *start = out;
    while (count--) out = stpcpy(out, word);
    return out - start;
}

static int opening(char *out, struct connection *c, const char *object) {
    static const char form[] = "{\"id\":\"chatcmpl-%s\",\"object\":\"%s\",\"created\":1,\"model\":\"truth\",\"choices\":[";
    return sprintf(out, form, c->request->key, object);
}

static int usage_of(char *out, struct connection *c) {
    return sprintf(out, "\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":%d,\"total_tokens\":%d}}", c->tokens, c->tokens + 9);
}

static int delta(char *out, struct connection *c, struct event *e) { /* what a chunk has for its choice */
    struct event *first = c->request->events;
    char *start = out;
    if (e->kind == ROLE) out += sprintf(out, "{\"role\":\"assistant\",\"content\":\"\"}");
    else if (e->kind == FINISH) out += sprintf(out, "{}");
    else if (e->kind == TOOL_CALL && e <= first + (first->kind == ROLE))
        out += sprintf(out, "{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":\"function\","
                            "\"function\":{\"name\":\"count\",\"arguments\":\"\"}}]}");
    else if (e->kind == TOOL_CALL) {
        out += sprintf(out, "{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"");
        out += words(out, "7", e->tokens);
        out += sprintf(out, "\"}}]}");
    } else {
        out += sprintf(out, "{\"%s\":\"", e->kind == CONTENT ? "content" : "reasoning_content");
        out += words(out, " word", e->tokens);
        out += sprintf(out, "\"}");
    }
    return out - start;
}

static int chunk(char *out, struct connection *c, struct event *e) { /* the event as a chunk of HTTP, its length in front */
    static char text[MOST_PACKED * 8 + 512];
    char *at = text;
    bool called = e->kind == FINISH && e[-1].kind == TOOL_CALL;
    if (e->kind == DONE) at += sprintf(at, "data: [DONE]\n\n");
    else {
        at += sprintf(at, "data: ");
        at += opening(at, c, "chat.completion.chunk");
        if (e->kind == USAGE) { at += sprintf(at, "],"); at += usage_of(at, c); }
        else {
            at += sprintf(at, "{\"index\":0,\"delta\":");
            at += delta(at, c, e);
            at += sprintf(at, ",\"finish_reason\":%s}]}", e->kind != FINISH ? "null" : called ? "\"tool_calls\"" : "\"stop\"");
        }
        at += sprintf(at, "\n\n");
    }
    return sprintf(out, "%zx\r\n%s\r\n%s", (size_t)(at - text), text, e->kind == DONE ? "0\r\n\r\n" : "");
}

static int whole(char *out, struct connection *c) { /* an answer without streaming, its head in front */
    static char body[MOST_TOKENS * 8 + 512];
    char *at = body;
    at += opening(at, c, "chat.completion");
    at += sprintf(at, "{\"index\":0,\"finish_reason\":\"stop\",\"message\":{\"role\":\"assistant\",\"content\":\"");
    at += words(at, " word", c->tokens);
    at += sprintf(at, "\"}}],");
    at += usage_of(at, c);
    return sprintf(out, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n%s", (size_t)(at - body), body);
}

static void take_up(struct connection *c);

static void send_due(struct connection *c) { /* sends the next event, which is due */
    static char out[MOST_TOKENS * 8 + 1024];
    struct request *r = c->request;
    struct event *e = &r->events[r->sent++];
    size_t size = e->kind == ANSWER ? whole(out, c) : chunk(out, c, e);
    e->before = now();
    put(c, out, size);
    e->after = now();
    wake_never(c);
    if (c->gone) return;
    if (r->sent < r->planned) { wake_at(c, r->events[r->sent].due); return; }
    r->ended = true;
    c->request = NULL;
    take_up(c);
}

/* ---------------------------------------------------------------- what is asked */

static void tell_truth(struct connection *c) { /* of the requests that ended, which are forgotten */
    char *text; size_t size; int kept = 0;
    FILE *out = open_memstream(&text, &size);
    for (int i = 0; i < request_count; i++) {
        struct request *r = requests[i];
        if (!r->ended) { requests[kept++] = r; continue; }
        fprintf(out, "{\"key\":\"%s\",\"arrived\":%lld,\"events\":[", r->key, (long long)r->arrived);
        for (struct event *e = r->events; e < r->events + r->sent; e++)
            fprintf(out, "%s[\"%s\",%lld,%lld,%lld,%d]", e == r->events ? "" : ",", KINDS[e->kind],
                    (long long)e->due, (long long)e->before, (long long)e->after, e->tokens);
        fprintf(out, "]}\n");
        free(r->events);
        free(r);
    }
    request_count = kept;
    fclose(out);
    put_whole(c, 200, text, size);
    free(text);
}

static void text_after(char *out, size_t room, const char *body, const char *mark, const char *end) { /* up to one of `end` */
    const char *found = strstr(body, mark);
    size_t size = found ? strcspn(found + strlen(mark), end) : 0;
    if (size >= room) size = room - 1;
    memcpy(out, found ? found + strlen(mark) : "", size);
    out[size] = 0;
}

static bool is_true(const char *body, const char *member) {
    const char *found = strstr(body, member);
    return found && !strncmp(found + strlen(member) + strspn(found + strlen(member), ": "), "true", 4);
}

static void begin(struct connection *c, const char *body, ns arrived) {
    struct request *r = c->request = calloc(1, sizeof *r);
    char asked[256];
    bool streamed = is_true(body, "\"stream\"");
    if (request_count == request_room) requests = realloc(requests, (request_room = request_room * 2 + 64) * sizeof *requests);
    requests[request_count++] = r;
    r->arrived = arrived;
    text_after(r->key, sizeof r->key, body, "key=", "\"\\ ,;");
    text_after(asked, sizeof asked, body, "\"truth/", "\"");
    c->random = seed(r->key);
    plan(c, parse(*asked ? asked : usual), streamed, is_true(body, "\"include_usage\""));
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    if (streamed) put(c, head, sizeof head - 1);
    wake_at(c, r->events[0].due);
}

static bool answer(struct connection *c, char *head, char *body, ns arrived) { /* false: nobody knows what that is */
    char *path = strchr(head, ' ');
    if (!path) return false;
    path[1 + strcspn(path + 1, " ?")] = 0;
    char *last = strrchr(path, '/'), list[512];
    if (!last) return false;
    if (!strncmp(head, "POST", 4) && !strcmp(last, "/completions")) begin(c, body, arrived);
    else if (!strcmp(last, "/truth")) tell_truth(c);
    else if (!strcmp(last, "/models")) {
        static const char form[] = "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\"}]}";
        put_whole(c, 200, list, snprintf(list, sizeof list, form, model));
    } else return false;
    return true;
}

static void take_up(struct connection *c) { /* the next request, if it is there as a whole */
    ns arrived = now();
    c->in[c->size] = 0;
    char *end = strstr(c->in, "\r\n\r\n"), *length = strcasestr(c->in, "\r\ncontent-length:");
    if (c->request || !end) return;
    char *body = end + 4;
    size_t size = body - c->in + (length && length < end ? strtoul(length + 17, NULL, 10) : 0);
    if (c->size < size) return;
    char behind = c->in[size];
    c->in[size] = *end = 0;
    if (!answer(c, c->in, body, arrived)) put_whole(c, 404, "{}", 2);
    c->in[size] = behind;
    memmove(c->in, c->in + size, c->size -= size);
}

/* ---------------------------------------------------------------- connections */

static void welcome(int listener) {
    for (int fd, on = 1; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        struct connection *c = calloc(1, sizeof *c);
        struct epoll_event readable = {.events = EPOLLIN, .data.ptr = c};
        c->fd = fd;
        c->place = -1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        epoll_ctl(poller, EPOLL_CTL_ADD, fd, &readable);
    }
}

static void part(struct connection *c) {
    wake_never(c);
    if (c->request) c->request->ended = true;
    close(c->fd);
    free(c->in);
    free(c);
}

static void read_all(struct connection *c) {
    for (ssize_t got;; c->size += got) {
        if (c->room < c->size + 4096) c->in = realloc(c->in, c->room = c->room * 2 + 16384);
        got = recv(c->fd, c->in + c->size, c->room - c->size - 1, 0);
        if (got < 0 && errno == EAGAIN) break;
        if (got <= 0) { part(c); return; }
    }
    take_up(c);
}

static void send_all_due(void) { while (heap_size && heap[0]->due <= now()) send_due(heap[0]); }

static int serve(int listener) { /* until stdin closes */
    struct epoll_event arrivals = {.events = EPOLLIN, .data.ptr = &listener}, end = {.events = EPOLLIN, .data.ptr = &model}, ready[64];
    poller = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &arrivals);
    epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &end);
    for (;;) {
        ns left = heap_size ? heap[0]->due - now() : 0;
        struct timespec wait = {left > 0 ? left / 1000000000 : 0, left > 0 ? left % 1000000000 : 0};
        int count = epoll_pwait2(poller, ready, 64, heap_size ? &wait : NULL, NULL);
        for (int i = 0; i < count; i++) {
            char gone;
            if (ready[i].data.ptr == &listener) welcome(listener);
            else if (ready[i].data.ptr != &model) read_all(ready[i].data.ptr);
            else if (read(STDIN_FILENO, &gone, 1) <= 0) return 0;
            send_all_due();
        }
        send_all_due();
    }
}

int main(int count, char **arguments) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    struct sched_param first = {.sched_priority = 10};
    model = count > 1 ? arguments[1] : "truth/";
    usual = strchr(model, '/') ? strchr(model, '/') + 1 : "";
    prctl(PR_SET_TIMERSLACK, 1);
    mlockall(MCL_CURRENT | MCL_FUTURE);
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) { perror("truth"); return 1; }
    getsockname(listener, (void *)&address, &size);
    bool realtime = !sched_setscheduler(0, SCHED_FIFO, &first);
    printf("{\"port\": %d, \"realtime\": %s}\n", ntohs(address.sin_port), realtime ? "true" : "false");
    fflush(stdout);
    return serve(listener);
}
