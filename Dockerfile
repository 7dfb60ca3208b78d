# A broker in a container:
#
#   docker build -t strandlog .
#   docker run -p 127.0.0.1:9092:9092 -p 127.0.0.1:9095:9095 -v strandlog:/var/lib/strandlog \
#       strandlog serve --insecure
#
# Inside the container the broker listens on all addresses, so it starts only with authentication
# (mount a configuration file to /etc/strandlog/strandlog.toml) or with --insecure.
# deploy/compose.yaml runs it with Prometheus and Grafana.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
COPY . /source
RUN python -m venv /opt/strandlog \
    && /opt/strandlog/bin/pip install --no-cache-dir --constraint /source/constraints.txt \
        "/source[server,grpc,schemas,cli,console]" \
    && /opt/strandlog/bin/python -m compileall -q /opt/strandlog/lib

FROM python:${PYTHON}-slim
COPY --from=build /opt/strandlog /opt/strandlog
COPY deploy/docker/strandlog.toml /etc/strandlog/strandlog.toml
RUN useradd --system --uid 10001 --home-dir /var/lib/strandlog --shell /usr/sbin/nologin strandlog \
    && install -d -o strandlog -g strandlog -m 0700 /var/lib/strandlog
ENV PATH=/opt/strandlog/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    STRANDLOG_CONFIG=/etc/strandlog/strandlog.toml
USER strandlog
WORKDIR /var/lib/strandlog
VOLUME /var/lib/strandlog
EXPOSE 9092 9094 9095
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9095/readyz', timeout=2)"]
ENTRYPOINT ["strandlog"]
CMD ["serve"]
