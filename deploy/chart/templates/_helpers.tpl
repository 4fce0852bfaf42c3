{{/* Labels of every object. */}}
{{- define "nri-vgpu.labels" -}}
app.kubernetes.io/part-of: nri-vgpu
{{- if not .Values.manifest }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}
{{- end }}

{{- define "nri-vgpu.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* How every container is pulled. The manifest leaves it to the default. */}}
{{- define "nri-vgpu.pull" -}}
image: {{ include "nri-vgpu.image" . }}
{{- if not .Values.manifest }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}
{{- end }}

{{/* What holds where neither config nor configFile says otherwise, as YAML. */}}
{{- define "nri-vgpu.defaults" -}}
{{ .Files.Get "files/config.toml" | fromToml | toYaml }}
{{- end }}

{{/* What agent and patcher will read, as YAML. */}}
{{- define "nri-vgpu.config" -}}
{{- $own := .Values.config }}
{{- if .Values.configFile }}
{{- if .Values.config }}{{ fail "config and configFile are both set: leave one of them out" }}{{ end }}
{{- $own = .Values.configFile | fromToml }}
{{- with $own.Error }}{{ fail (printf "configFile is no TOML: %s" .) }}{{ end }}
{{- end }}
{{- $config := mergeOverwrite (include "nri-vgpu.defaults" . | fromYaml) (deepCopy $own) }}
{{- toYaml $config }}
{{- end }}

{{/* The text of config.toml. */}}
{{- define "nri-vgpu.configText" -}}
{{- if .Values.configFile -}}
{{ .Values.configFile }}
{{- else if not .Values.config -}}
{{ .Files.Get "files/config.toml" }}
{{- else -}}
# What differs from the defaults; docs/configuration.md lists every key.
{{- include "nri-vgpu.tomlTable" (dict "path" "" "table" .Values.config) }}
{{- end }}
{{- end }}

{{/* A table in TOML: its own values, then the tables in it. */}}
{{- define "nri-vgpu.tomlTable" -}}
{{- $path := .path }}
{{- $table := .table }}
{{- if $path }}
[{{ $path }}]
{{- end }}
{{- range $key, $value := $table }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ include "nri-vgpu.tomlValue" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := $table }}
{{- if kindIs "map" $value }}
{{ include "nri-vgpu.tomlTable" (dict "path" (ternary $key (printf "%s.%s" $path $key) (empty $path)) "table" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{/* A value in TOML. All its numbers are integers. */}}
{{- define "nri-vgpu.tomlValue" -}}
{{- if kindIs "string" . }}{{ toJson . }}
{{- else if kindIs "bool" . }}{{ . }}
{{- else if kindIs "slice" . }}[{{ range $i, $v := . }}{{ if $i }}, {{ end }}{{ include "nri-vgpu.tomlValue" $v }}{{ end }}]
{{- else if kindIs "map" . }}{ {{- $first := true }}{{ range $k, $v := . }}{{ if not $first }},{{ end }} {{ $k }} = {{ include "nri-vgpu.tomlValue" $v }}{{ $first = false }}{{ end }} }
{{- else }}{{ int64 . }}
{{- end }}
{{- end }}

{{/* The port of an address such as ":9394". */}}
{{- define "nri-vgpu.port" -}}{{ regexFind "[0-9]+$" . }}{{- end }}

{{/* The host of an address, if kubelet is not to take the pod's. */}}
{{- define "nri-vgpu.host" -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" }}
{{- if not (has $host (list "" "0.0.0.0" "::")) }}{{ $host }}{{ end }}
{{- end }}

{{/* Whether metrics need a token, and so come over TLS. */}}
{{- define "nri-vgpu.authentication" -}}
{{- $config := include "nri-vgpu.config" . | fromYaml }}
{{- if eq $config.metrics.authentication "kubernetes" }}true{{ end }}
{{- end }}

{{/* What the pods of both DaemonSets have in common. */}}
{{- define "nri-vgpu.podAnnotations" -}}
# Where the runtime requires our plugin, we start before it is there.
nri-vgpu.io/tolerate-missing: "true"
{{- if not .root.Values.manifest }}
checksum/config: {{ include "nri-vgpu.configText" .root | sha256sum }}
{{- end }}
{{- if .root.Values.prometheus.annotations }}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
prometheus.io/port: {{ .port | quote }}
{{- if include "nri-vgpu.authentication" .root }}
prometheus.io/scheme: https
{{- end }}
{{- end }}
{{- with .root.Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "nri-vgpu.scheduling" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What helm uninstall runs first, in the order of weights. */}}
{{- define "nri-vgpu.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* A container without privileges. */}}
{{- define "nri-vgpu.restricted" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- end }}
