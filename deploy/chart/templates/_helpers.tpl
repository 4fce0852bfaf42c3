{{/* nri-vgpu.name is the base of the labels app.kubernetes.io/name. */}}
{{- define "nri-vgpu.name" -}}{{ .Values.nameOverride | default "nri-vgpu" }}{{- end }}

{{/* nri-vgpu.fullname is the base of the names of objects. */}}
{{- define "nri-vgpu.fullname" -}}{{ .Values.fullnameOverride | default (include "nri-vgpu.name" .) }}{{- end }}

{{/* nri-vgpu.patcherOf is the patcher's name for a base of names. */}}
{{- define "nri-vgpu.patcherOf" -}}
{{- if eq . "nri-vgpu" }}extended-resource-patcher{{ else }}{{ . }}-patcher{{ end }}
{{- end }}
{{- define "nri-vgpu.patcher" -}}{{ include "nri-vgpu.patcherOf" (include "nri-vgpu.fullname" .) }}{{- end }}
{{- define "nri-vgpu.patcherName" -}}{{ include "nri-vgpu.patcherOf" (include "nri-vgpu.name" .) }}{{- end }}

{{/* nri-vgpu.podLabels contains the labels of all pods but name and component. */}}
{{- define "nri-vgpu.podLabels" -}}
app.kubernetes.io/part-of: nri-vgpu
{{- if not .Values.manifest }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- with .Values.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* nri-vgpu.labels contains the labels of every object. */}}
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

{{/*
nri-vgpu.pull contains the image and pull policy of every container. The manifest uses the
default policy.
*/}}
{{- define "nri-vgpu.pull" -}}
image: {{ include "nri-vgpu.image" . }}
{{- if not .Values.manifest }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}
{{- end }}

{{/* nri-vgpu.defaults contains the defaults of all keys, as YAML. */}}
{{- define "nri-vgpu.defaults" -}}
{{ .Files.Get "files/config.toml" | fromToml | toYaml }}
{{- end }}

{{/* nri-vgpu.config contains the configuration of agent and patcher, as YAML. */}}
{{- define "nri-vgpu.config" -}}
{{- $own := .Values.config }}
{{- if .Values.configFile }}
{{- if .Values.config }}{{ fail "config and configFile are both set: leave one of them out" }}{{ end }}
{{- $own = .Values.configFile | fromToml }}
{{- with $own.Error }}{{ fail (printf "configFile is no TOML: %s" .) }}{{ end }}
{{- end }}
{{- if ne (dig "driver" "root" "/" $own) "/" }}{{ fail "config.driver.root has no effect, because the chart passes --driver-root to the agent: set driver.root instead" }}{{ end }}
{{- $config := mergeOverwrite (include "nri-vgpu.defaults" . | fromYaml) (deepCopy $own) }}
{{- toYaml $config }}
{{- end }}

{{/* nri-vgpu.configText contains the text of config.toml. */}}
{{- define "nri-vgpu.configText" -}}
{{- if .Values.configFile -}}
{{ .Values.configFile }}
{{- else if not .Values.config -}}
{{ .Files.Get "files/config.toml" }}
{{- else -}}
# This file contains only keys with values other than the defaults.
# docs/reference/configuration-keys.md lists all keys.
{{- include "nri-vgpu.tomlTable" (dict "path" "" "table" .Values.config) }}
{{- end }}
{{- end }}

{{/* nri-vgpu.tomlTable writes a table in TOML: the table's values, followed by its tables. */}}
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

{{/* nri-vgpu.tomlValue writes a value in TOML. All numbers of the configuration are integers. */}}
{{- define "nri-vgpu.tomlValue" -}}
{{- if kindIs "string" . }}{{ toJson . }}
{{- else if kindIs "bool" . }}{{ . }}
{{- else if kindIs "slice" . }}[{{ range $i, $v := . }}{{ if $i }}, {{ end }}{{ include "nri-vgpu.tomlValue" $v }}{{ end }}]
{{- else if kindIs "map" . }}{ {{- $first := true }}{{ range $k, $v := . }}{{ if not $first }},{{ end }} {{ $k }} = {{ include "nri-vgpu.tomlValue" $v }}{{ $first = false }}{{ end }} }
{{- else }}{{ int64 . }}
{{- end }}
{{- end }}

{{/* nri-vgpu.port contains the port of an address such as ":9394". */}}
{{- define "nri-vgpu.port" -}}{{ regexFind "[0-9]+$" . }}{{- end }}

{{/*
nri-vgpu.host contains the host of an address, or nothing if the kubelet must use the pod's
host.
*/}}
{{- define "nri-vgpu.host" -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" | trimPrefix "[" | trimSuffix "]" }}
{{- if not (has $host (list "" "0.0.0.0" "::")) }}{{ $host }}{{ end }}
{{- end }}

{{/*
nri-vgpu.authentication is "true" if clients need a token for metrics, which are then served
over TLS.
*/}}
{{- define "nri-vgpu.authentication" -}}
{{- $config := include "nri-vgpu.config" . | fromYaml }}
{{- if eq $config.metrics.authentication "kubernetes" }}true{{ end }}
{{- end }}

{{/* nri-vgpu.podAnnotations contains the common annotations of the pods of both DaemonSets. */}}
{{- define "nri-vgpu.podAnnotations" -}}
# If the runtime requires the plugin, these pods must start before the plugin runs.
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

{{/*
nri-vgpu.memoryLimit contains the variables that make Go collect garbage before the kernel
kills a container for its memory. Go may use 95 % of the limit: as many MB as the limit has MiB.
Go does not count memory of C libraries.
*/}}
{{- define "nri-vgpu.memoryLimit" -}}
- name: MEMORY_LIMIT_MIB
  valueFrom:
    resourceFieldRef: {resource: limits.memory, divisor: 1Mi}
- {name: GOMEMLIMIT, value: $(MEMORY_LIMIT_MIB)000000B}
{{- end }}

{{/*
nri-vgpu.platform contains the expressions that select nodes for which the images are built.
*/}}
{{- define "nri-vgpu.platform" -}}
- {key: kubernetes.io/os, operator: In, values: [linux]}
- {key: kubernetes.io/arch, operator: In, values: {{ .Values.architectures | toJson }}}
{{- end }}

{{/*
nri-vgpu.scheduling contains the pods' fields that select nodes. A pod with the value "labels" runs
only on nodes with a label of gpuNodeLabels, unless other values select the nodes.
*/}}
{{- define "nri-vgpu.scheduling" -}}
{{- $labels := ternary (include "nri-vgpu.gpuNodeLabels" .root | fromJsonArray) list .labels }}
{{- with .root.Values }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  {{- with omit .affinity "nodeAffinity" }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  nodeAffinity:
    {{- with .affinity.nodeAffinity }}
    {{- toYaml . | nindent 4 }}
    {{- else }}
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- range $label := $labels | default (list "") }}
        - matchExpressions:
            {{- with $label }}
            - {key: {{ . }}, operator: In, values: ["true"]}
            {{- end }}
            {{- include "nri-vgpu.platform" $.root | nindent 12 }}
        {{- end }}
    {{- end }}
{{- with .imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/*
nri-vgpu.gpuNodeLabels contains the labels that select nodes, as JSON. The list is empty if other
values select the nodes.
*/}}
{{- define "nri-vgpu.gpuNodeLabels" -}}
{{- ternary list .Values.gpuNodeLabels (or (not (empty .Values.nodeSelector)) (not (empty .Values.affinity.nodeAffinity))) | toJson }}
{{- end }}

{{/* nri-vgpu.unselected contains the names of the given Nodes without any of the labels, as JSON. */}}
{{- define "nri-vgpu.unselected" -}}
{{- $without := list }}
{{- $labels := .labels }}
{{- range $node := .nodes }}
{{- $selected := false }}
{{- range $label := $labels }}
{{- $selected = or $selected (eq (dig "labels" $label "" $node.metadata) "true") }}
{{- end }}
{{- if not $selected }}{{ $without = append $without $node.metadata.name }}{{ end }}
{{- end }}
{{- $without | toJson }}
{{- end }}

{{/*
nri-vgpu.hook contains the annotations of the hooks that helm uninstall runs first, in the order
of weights.
*/}}
{{- define "nri-vgpu.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* nri-vgpu.restricted is the security context of a container without privileges. */}}
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

{{/*
nri-vgpu.dialects contains the names of the resources of each enabled dialect, as JSON. The argument
is the table dialects of a configuration.
*/}}
{{- define "nri-vgpu.dialects" -}}
{{- $all := list }}
{{- range $dialect := list "native" "alnair" "aws" "volcano" "hami" "metagpu" }}
{{- with index $ $dialect }}
{{- $names := list .number .memory .memory_percentage .cores .compute .slots }}
{{- range .device_sharing }}{{ $names = append $names .resource_name }}{{ end }}
{{- if .enabled }}{{ $all = append $all (without $names "" nil) }}{{ end }}
{{- end }}
{{- end }}
{{- $all | toJson }}
{{- end }}

{{/* nri-vgpu.asking contains the names of the resources of all enabled dialects, as a list in CEL. */}}
{{- define "nri-vgpu.asking" -}}
{{- $names := list }}
{{- range include "nri-vgpu.dialects" . | fromJsonArray }}{{ $names = concat $names . }}{{ end }}
{{- $names | toJson }}
{{- end }}

{{/*
nri-vgpu.allDialects contains the table dialects outside the pools and of each pool, as JSON.
*/}}
{{- define "nri-vgpu.allDialects" -}}
{{- $config := include "nri-vgpu.config" . | fromYaml }}
{{- $all := list $config.dialects }}
{{- range $config.pool }}
{{- $all = append $all (mergeOverwrite (deepCopy $config.dialects) (.dialects | default dict)) }}
{{- end }}
{{- $all | toJson }}
{{- end }}

{{/* nri-vgpu.resources contains the names that any node may offer, one in each line. */}}
{{- define "nri-vgpu.resources" -}}
{{- $names := list }}
{{- range include "nri-vgpu.allDialects" . | fromJsonArray }}
{{- $names = concat $names (include "nri-vgpu.asking" . | fromJsonArray) }}
{{- if .hami.enabled }}{{ $names = append $names .hami.priority }}{{ end }}
{{- end }}
{{- $names | uniq | join "\n" }}
{{- end }}
