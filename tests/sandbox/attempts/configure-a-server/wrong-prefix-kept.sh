#!/bin/bash
# The application is asked for /api/users instead of /users.
bash /solution/solve.sh && sed -i 's#proxy_pass http://127.0.0.1:9000/;#proxy_pass http://127.0.0.1:9000;#' /srv/site/nginx.conf
