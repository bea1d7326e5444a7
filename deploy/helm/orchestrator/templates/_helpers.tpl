{{- define "orchestrator.name" -}}
{{- if contains "orchestrator" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-orchestrator{{ end -}}
{{- end }}

{{- define "orchestrator.selector" -}}
app.kubernetes.io/name: orchestrator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "orchestrator.labels" -}}
{{ include "orchestrator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "orchestrator.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ get $image .component }}
{{- with get $image (printf "%sDigest" .component) }}@{{ . }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end }}

{{- define "orchestrator.url" -}}
{{ if .Values.tls.enabled }}https{{ else }}http{{ end }}://{{ include "orchestrator.name" . }}-coordinator:7070
{{- end }}

{{- define "orchestrator.encryption" -}}
{{ if .Values.tls.enabled }}--tls=/etc/orchestrator/tls{{ else }}--insecure-plaintext{{ end }}
{{- end }}

{{- /* What every pod has in common. */}}
{{- define "orchestrator.pod" -}}
serviceAccountName: {{ include "orchestrator.name" . }}
automountServiceAccountToken: false
# Kubernetes would add ORCHESTRATOR_… variables for each Service, and those are our settings.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "orchestrator.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop:
      - ALL
{{- end }}

{{- define "orchestrator.aliveProbes" -}}
livenessProbe:
  grpc:
    port: 7072
    service: liveness
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  grpc:
    port: 7072
    service: readiness
  periodSeconds: 5
  timeoutSeconds: 5
{{- end }}

{{- define "orchestrator.tlsMount" -}}
{{- if .Values.tls.enabled }}
- name: tls
  mountPath: /etc/orchestrator/tls
  readOnly: true
{{- end }}
{{- end }}

{{- define "orchestrator.tlsVolume" -}}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
{{- end }}
{{- end }}

{{- define "orchestrator.dataArguments" -}}
{{- range .Values.dataRoots }}
- {{ printf "--data-root=%s=%s" .name .mountPath | quote }}
{{- end }}
{{- end }}

{{- define "orchestrator.dataMounts" -}}
{{- range .Values.dataRoots }}
- name: {{ .name }}
  mountPath: {{ .mountPath }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "orchestrator.dataVolumes" -}}
{{- range .Values.dataRoots }}
- name: {{ .name }}
  {{- toYaml .volume | nindent 2 }}
{{- end }}
{{- end }}

{{- /* A group over the defaults, as JSON. */}}
{{- define "orchestrator.group" -}}
{{- $group := mergeOverwrite (deepCopy .root.Values.workerDefaults) .group -}}
{{- $group | toJson -}}
{{- end }}
