"""Configuration files of peers that take one, as templates for `str.format`. Add yours here."""

LITELLM = """\
model_list:
{entries}litellm_settings:
  telemetry: false
general_settings:
  dangerously_permit_weak_or_unset_master_key: true
"""

NGINX = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 100000000;
  upstream replicas {{
    hash $http_x_session_id consistent;
{servers}    keepalive 64;
    keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{port};
    client_max_body_size 0;
    client_body_buffer_size 1m;
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering off;
      proxy_read_timeout 600s;
    }}
  }}
}}
"""

HAPROXY = """\
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 600s
  timeout server 600s
frontend in
  bind 127.0.0.1:{port}
  default_backend replicas
backend replicas
  balance hdr(x-session-id)
  hash-type consistent
  http-reuse always
{servers}"""

ENVOY_HOST = """
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}"""
ENVOY = """\
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: "/"}}
                route:
                  cluster: replicas
                  timeout: 0s
                  hash_policy: [{{header: {{header_name: x-session-id}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: replicas
    type: STATIC
    lb_policy: RING_HASH
    connect_timeout: 5s
    load_assignment:
      cluster_name: replicas
      endpoints:
      - lb_endpoints:{hosts}
"""
