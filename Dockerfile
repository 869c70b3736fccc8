# docker build -t storebench . [--build-arg TORCH_INDEX=URL of CPU builds, which spares gigabytes]
# docker run -v ~/photos:/data:ro storebench run --dataset /data
FROM python:3.13-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY scenarios scenarios
COPY storebench storebench
COPY docker/install /usr/local/bin/install-storebench
ARG TORCH_INDEX=
RUN install-storebench /source /opt/storebench

FROM python:3.13-slim
RUN useradd --create-home --home-dir /work storebench
COPY --from=build /opt/storebench /opt/storebench
ENV PATH=/opt/storebench/bin:$PATH
# Runs and stores are written here. Memory limits and read-ahead need --user root --privileged.
USER storebench
WORKDIR /work
ENTRYPOINT ["storebench"]
