{{- /* Bytes of "8 GiB" or "8Gi"; 0 of what is no size. */}}
{{- define "orchestrator.bytes" -}}
{{- $units := dict "B" 1 "" 1 "kB" 1e3 "MB" 1e6 "GB" 1e9 "TB" 1e12 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824 "TiB" 1099511627776 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9]+(\\.[0-9]+)?" $text -}}
{{- $unit := trim (trimPrefix $number $text) -}}
{{- if and $number (hasKey $units $unit) -}}
{{- mulf (float64 $number) (float64 (get $units $unit)) | int64 -}}
{{- else -}}
0
{{- end -}}
{{- end }}

{{- /* Values that contradict each other: all of them at once, each with what to do. */}}
{{- define "orchestrator.check" -}}
{{- $wrong := list -}}
{{- $v := .Values -}}
{{- if ne (int $v.coordinator.replicas) 1 -}}
{{- $wrong = append $wrong (printf "coordinator.replicas is %d: the coordinator is one writer over one volume; leave it at 1. Started again, it goes on with every run by itself" (int $v.coordinator.replicas)) -}}
{{- end -}}
{{- if and (not $v.tls.enabled) (not $v.insecurePlaintext) -}}
{{- $wrong = append $wrong "tls.enabled is false: everything would travel unencrypted, and whoever reaches the coordinator could run evaluations. Leave TLS on, or set insecurePlaintext: true too" -}}
{{- end -}}
{{- if and $v.tls.enabled $v.insecurePlaintext -}}
{{- $wrong = append $wrong "insecurePlaintext is true and TLS is on: set tls.enabled: false too, or leave insecurePlaintext out" -}}
{{- end -}}
{{- if and $v.coordinator.blobs $v.networkPolicy.enabled (not $v.networkPolicy.coordinatorEgress) -}}
{{- $wrong = append $wrong "coordinator.blobs is set and networkPolicy.coordinatorEgress is empty: the coordinator could not reach the bucket. Add a rule that lets it out, or switch the policies off" -}}
{{- end -}}
{{- if and (not $v.tls.enabled) $v.tls.certManager.enabled -}}
{{- $wrong = append $wrong "tls.certManager.enabled is true and TLS is off: set tls.enabled: true, or leave cert-manager out" -}}
{{- end -}}
{{- if and (not $v.tls.enabled) $v.external.enabled -}}
{{- $wrong = append $wrong "external.enabled is true and TLS is off: clients from outside must come with a certificate; set tls.enabled: true" -}}
{{- end -}}
{{- if and $v.external.enabled (not $v.external.allowedCidrs) -}}
{{- $wrong = append $wrong "external.enabled is true and external.allowedCidrs is empty: name the networks that clients come from" -}}
{{- end -}}
{{- if and $v.external.nodePort (ne $v.external.type "NodePort") -}}
{{- $wrong = append $wrong (printf "external.nodePort is set and external.type is %s: set external.type: NodePort, or leave the port out" $v.external.type) -}}
{{- end -}}
{{- if and $v.external.enabled $v.tls.certManager.enabled (not $v.tls.certManager.extraDnsNames) -}}
{{- $wrong = append $wrong "external.enabled is true and cert-manager makes the certificates: name the host under which clients come in tls.certManager.extraDnsNames" -}}
{{- end -}}
{{- if and $v.evaluation.enabled (not $v.evaluation.yaml) -}}
{{- $wrong = append $wrong "evaluation.enabled is true and evaluation.yaml is empty: give it the text of an eval.yaml, for example with --set-file evaluation.yaml=eval.yaml" -}}
{{- end -}}
{{- $roots := dict -}}
{{- range $v.dataRoots -}}
{{- if hasKey $roots .name -}}
{{- $wrong = append $wrong (printf "dataRoots has `%s` twice: give each root a name of its own" .name) -}}
{{- end -}}
{{- if has .name (list "cache" "tmp" "tls" "results" "evaluation") -}}
{{- $wrong = append $wrong (printf "dataRoots has `%s`, which is the name of a volume of our own: choose another name" .name) -}}
{{- end -}}
{{- $_ := set $roots .name true -}}
{{- end -}}
{{- $names := dict -}}
{{- range $v.workerGroups -}}
{{- $g := include "orchestrator.group" (dict "root" $ "group" .) | fromJson -}}
{{- $at := printf "workerGroups, group `%s`: " $g.name -}}
{{- if hasKey $names $g.name -}}
{{- $wrong = append $wrong (printf "%sthe name stands twice; give each group a name of its own" $at) -}}
{{- end -}}
{{- $_ := set $names $g.name true -}}
{{- if ge (int $g.drainSeconds) (int $g.terminationGracePeriodSeconds) -}}
{{- $wrong = append $wrong (printf "%sdrainSeconds is %d and terminationGracePeriodSeconds is %d: units in work would be killed before they end; make the second at least %d" $at (int $g.drainSeconds) (int $g.terminationGracePeriodSeconds) (add (int $g.drainSeconds) 30)) -}}
{{- end -}}
{{- if and (eq $g.kind "shared") (not $g.quota) -}}
{{- $wrong = append $wrong (printf "%sothers use its GPU too, and there is no quota; set quota, for example \"8 GiB\", so that the quotas of all who share it stay below its memory" $at) -}}
{{- end -}}
{{- if and (ne $g.kind "cpu") (ne (int $g.slices) 1) -}}
{{- $wrong = append $wrong (printf "%sslices is %d and kind is %s: a pod has one device, and that is one slice; leave slices out and raise replicas" $at (int $g.slices) $g.kind) -}}
{{- end -}}
{{- if and (eq $g.kind "mig") (not (contains "/mig-" $g.resource)) -}}
{{- $wrong = append $wrong (printf "%skind is mig and resource is %s: name the profile, for example nvidia.com/mig-1g.18gb (`kubectl describe node` lists what there is); with the plugin's migStrategy: single use kind: gpu" $at $g.resource) -}}
{{- end -}}
{{- if and (eq $g.kind "gpu") (contains "/mig-" $g.resource) -}}
{{- $wrong = append $wrong (printf "%skind is gpu and resource is %s: set kind: mig" $at $g.resource) -}}
{{- end -}}
{{- $quota := include "orchestrator.bytes" $g.quota | int64 -}}
{{- $slice := include "orchestrator.bytes" $g.sliceMemory | int64 -}}
{{- if and $slice (gt $quota $slice) -}}
{{- $wrong = append $wrong (printf "%squota is %s and its slice has %s: lower the quota, or choose a larger slice" $at $g.quota $g.sliceMemory) -}}
{{- end -}}
{{- $profile := regexFind "[0-9]+gb" (regexFind "/mig-[0-9]+g\\.[0-9]+gb" $g.resource) -}}
{{- if and (eq $g.kind "mig") $profile -}}
{{- $most := mul (trimSuffix "gb" $profile | int64) 1073741824 -}}
{{- if gt $quota $most -}}
{{- $wrong = append $wrong (printf "%squota is %s and a slice of %s has less than %s GiB: lower the quota, or choose a larger profile" $at $g.quota $g.resource (trimSuffix "gb" $profile)) -}}
{{- end -}}
{{- end -}}
{{- $limit := include "orchestrator.bytes" $g.resources.limits.memory | int64 -}}
{{- if and (eq $g.kind "cpu") $limit (gt (mul $quota (int64 $g.slices)) $limit) -}}
{{- $wrong = append $wrong (printf "%s%d × quota %s is more than the container's memory limit %s: the kernel would kill it; raise resources.limits.memory or lower the quota" $at (int $g.slices) $g.quota $g.resources.limits.memory) -}}
{{- end -}}
{{- if ne (toString $g.resources.requests.memory) (toString $g.resources.limits.memory) -}}
{{- $wrong = append $wrong (printf "%smemory request %s and limit %s differ: a slice's quota is a promise, so make them equal" $at $g.resources.requests.memory $g.resources.limits.memory) -}}
{{- end -}}
{{- end -}}
{{- if $wrong -}}
{{- fail (printf "\n  - %s\n" (join "\n  - " $wrong)) -}}
{{- end -}}
{{- end }}
