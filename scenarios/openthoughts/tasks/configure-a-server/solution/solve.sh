#!/bin/bash
set -euo pipefail
cat >/srv/site/nginx.conf <<'END'
worker_processes 1;
pid /run/site/nginx.pid;
error_log /run/site/error.log;

events {
    worker_connections 256;
}

http {
    client_body_temp_path /run/site/body;
    proxy_temp_path /run/site/proxy;
    fastcgi_temp_path /run/site/fastcgi;
    uwsgi_temp_path /run/site/uwsgi;
    scgi_temp_path /run/site/scgi;

    types {
        text/html html;
        application/javascript js;
    }

    server_tokens off;
    client_max_body_size 1m;

    log_format line escape=json '{"method": "$request_method", "path": "$request_uri", "status": $status, "agent": "$http_user_agent"}';
    access_log /run/site/access.log line;

    server {
        listen 127.0.0.1:8080;
        root /srv/site/public;
        error_page 404 /404.html;

        location ~ /\. {
            return 404;
        }
        location = /404.html {
            add_header Cache-Control no-cache;
        }
        location / {
            try_files $uri $uri.html $uri/index.html =404;
            add_header Cache-Control no-cache;
        }
        location ^~ /assets/ {
            location ~ /\. {
                return 404;
            }
            add_header Cache-Control "public, max-age=31536000, immutable";
        }
        location ^~ /old/ {
            location ~ /\. {
                return 404;
            }
            rewrite ^/old(/.*)$ $1 permanent;
        }
        location ^~ /api/ {
            location ~ /\. {
                return 404;
            }
            proxy_pass http://127.0.0.1:9000/;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $remote_addr;
        }
    }
}
END
