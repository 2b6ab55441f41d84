"""The part of libucp's C interface (1.22 and 1.23) that moonpool calls, for cffi's ABI mode.

Declarations only. Structures that UCX fills or may read further than we know have room at their
tail: they grow with versions, and a mask says which fields count.
"""

UCS_OK = 0
UCS_INPROGRESS = 1
UCS_ERR_BUSY = -15
UCS_ERR_CANCELED = -16
LAST_ERROR = -100

PARAM_FEATURES = 1 << 0
PARAM_NAME = 1 << 8
FEATURE_RMA = 1 << 1
FEATURE_WAKEUP = 1 << 4

WORKER_PARAM_THREAD_MODE = 1 << 0
WORKER_PARAM_FLAGS = 1 << 5
WORKER_FLAG_IGNORE_REQUEST_LEAK = 1 << 0
THREAD_MODE_SINGLE = 0

WORKER_ATTR_ADDRESS = 1 << 1

EP_PARAM_REMOTE_ADDRESS = 1 << 0
EP_PARAM_ERR_HANDLING_MODE = 1 << 1
EP_PARAM_ERR_HANDLER = 1 << 2
ERR_HANDLING_MODE_PEER = 1
EP_CLOSE_FLAG_FORCE = 1 << 0
EP_ATTR_TRANSPORTS = 1 << 3

MEM_MAP_ADDRESS = 1 << 0
MEM_MAP_LENGTH = 1 << 1

OP_FLAGS = 1 << 4
OP_MEMH = 1 << 8

CDEF = """
typedef int8_t ucs_status_t;                  /* packed: one byte on x86-64 and aarch64 */
typedef struct ucp_config ucp_config_t;
typedef struct ucp_context *ucp_context_h;
typedef struct ucp_worker *ucp_worker_h;
typedef struct ucp_ep *ucp_ep_h;
typedef struct ucp_rkey *ucp_rkey_h;
typedef struct ucp_mem *ucp_mem_h;
typedef struct ucp_address ucp_address_t;
typedef struct { const void *addr; uint32_t addrlen; } ucs_sock_addr_t;

typedef struct {
    uint64_t field_mask;
    uint64_t features;
    size_t request_size;
    void *request_init;
    void *request_cleanup;
    uint64_t tag_sender_mask;
    int mt_workers_shared;
    size_t estimated_num_eps;
    size_t estimated_num_ppn;
    const char *name;
    size_t node_local_id;
    char later[256];
} ucp_params_t;

typedef struct {
    uint64_t field_mask;
    int thread_mode;
    unsigned long cpu_mask[16];
    unsigned events;
    void *user_data;
    int event_fd;
    uint64_t flags;
    const char *name;
    size_t am_alignment;
    uint64_t client_id;
    char later[256];
} ucp_worker_params_t;

typedef struct {
    uint64_t field_mask;
    int thread_mode;
    uint32_t address_flags;
    ucp_address_t *address;
    size_t address_length;
    size_t max_am_header;
    char name[32];
    size_t max_debug_string;
    char later[256];
} ucp_worker_attr_t;

typedef void (*ucp_err_handler_cb_t)(void *arg, ucp_ep_h ep, ucs_status_t status);
typedef struct { ucp_err_handler_cb_t cb; void *arg; } ucp_err_handler_t;

typedef struct {
    uint64_t field_mask;
    const ucp_address_t *address;
    int err_mode;
    ucp_err_handler_t err_handler;
    void *user_data;
    unsigned flags;
    ucs_sock_addr_t sockaddr;
    void *conn_request;
    const char *name;
    ucs_sock_addr_t local_sockaddr;
    char later[256];
} ucp_ep_params_t;

typedef struct { const char *transport_name; const char *device_name; } ucp_transport_entry_t;
typedef struct {
    ucp_transport_entry_t *entries;
    unsigned num_entries;
    size_t entry_size;
} ucp_transports_t;

typedef struct {
    uint64_t field_mask;
    char name[32];
    char local_sockaddr[128];
    char remote_sockaddr[128];
    ucp_transports_t transports;
    void *user_data;
    char later[256];
} ucp_ep_attr_t;

typedef struct {
    uint64_t field_mask;
    void *address;
    size_t length;
    unsigned flags;
    unsigned prot;
    int memory_type;
    const void *exported_memh_buffer;
    char later[256];
} ucp_mem_map_params_t;

typedef struct {
    uint32_t op_attr_mask;
    uint32_t flags;
    void *request;
    void *cb;
    uint64_t datatype;
    void *user_data;
    void *reply_buffer;
    int memory_type;
    void *recv_info;
    ucp_mem_h memh;
    uint64_t remote_datatype;
    const void *remote;
    size_t remote_count;
    char later[256];
} ucp_request_param_t;

void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release);
const char *ucs_status_string(ucs_status_t status);
ucs_status_t ucp_config_read(const char *prefix, const char *file, ucp_config_t **config);
ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name, const char *value);
void ucp_config_release(ucp_config_t *config);
ucs_status_t ucp_init_version(unsigned major, unsigned minor, const ucp_params_t *params,
                              const ucp_config_t *config, ucp_context_h *context);
void ucp_cleanup(ucp_context_h context);
void ucp_context_print_info(const ucp_context_h context, FILE *stream);
ucs_status_t ucp_mem_map(ucp_context_h context, const ucp_mem_map_params_t *params,
                         ucp_mem_h *memh);
ucs_status_t ucp_mem_unmap(ucp_context_h context, ucp_mem_h memh);
ucs_status_t ucp_rkey_pack(ucp_context_h context, ucp_mem_h memh, void **buffer, size_t *size);
void ucp_rkey_buffer_release(void *buffer);
ucs_status_t ucp_worker_create(ucp_context_h context, const ucp_worker_params_t *params,
                               ucp_worker_h *worker);
void ucp_worker_destroy(ucp_worker_h worker);
ucs_status_t ucp_worker_query(ucp_worker_h worker, ucp_worker_attr_t *attributes);
void ucp_worker_release_address(ucp_worker_h worker, ucp_address_t *address);
ucs_status_t ucp_worker_get_efd(ucp_worker_h worker, int *fd);
ucs_status_t ucp_worker_arm(ucp_worker_h worker);
unsigned ucp_worker_progress(ucp_worker_h worker);
ucs_status_t ucp_ep_create(ucp_worker_h worker, const ucp_ep_params_t *params, ucp_ep_h *ep);
ucs_status_t ucp_ep_query(ucp_ep_h ep, ucp_ep_attr_t *attributes);
void *ucp_ep_close_nbx(ucp_ep_h ep, const ucp_request_param_t *param);
void *ucp_ep_flush_nbx(ucp_ep_h ep, const ucp_request_param_t *param);
ucs_status_t ucp_ep_rkey_unpack(ucp_ep_h ep, const void *buffer, ucp_rkey_h *rkey);
void ucp_rkey_destroy(ucp_rkey_h rkey);
void *ucp_get_nbx(ucp_ep_h ep, void *buffer, size_t count, uint64_t remote, ucp_rkey_h rkey,
                  const ucp_request_param_t *param);
void *ucp_put_nbx(ucp_ep_h ep, const void *buffer, size_t count, uint64_t remote, ucp_rkey_h rkey,
                  const ucp_request_param_t *param);
ucs_status_t ucp_request_check_status(void *request);
void ucp_request_free(void *request);
"""

LIBC_CDEF = """
FILE *open_memstream(char **buffer, size_t *size);
int fclose(FILE *stream);
void free(void *memory);
"""
