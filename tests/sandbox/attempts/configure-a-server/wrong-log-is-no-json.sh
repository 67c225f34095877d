#!/bin/bash
# A quotation mark of a client breaks the log.
bash /solution/solve.sh && sed -i 's/ escape=json / escape=none /' /srv/site/nginx.conf
