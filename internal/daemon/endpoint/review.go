// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

const (
	// reviewPatience bounds the wait for the API server.
	reviewPatience = 800 * time.Millisecond
	// remembered is the time for which an allowed token is cached, and for which a revoked right
	// may remain in force.
	remembered = time.Minute
	// familiar is the time for which a token that was allowed is reviewed again regardless of the
	// rate of its client.
	familiar = time.Hour
	// sharedLifetime is the longest lifetime of a token of Access.SharedAccount.
	sharedLifetime = time.Hour
	// mostRemembered bounds the number of cached tokens.
	mostRemembered = 128
	// mostReviews is the greatest number of concurrent reviews.
	mostReviews = 16
	// reviewBurst is the number of tokens of a client that may be refused immediately, and
	// reviewRate the later number per second.
	reviewBurst, reviewRate = 10, 2
)

// Access determines the clients of an address.
type Access struct {
	// Reviews is the client that has the API server authenticate and authorize clients.
	Reviews kubernetes.Interface
	// Audience is the audience of tokens, "" for the API server's audience.
	Audience string
	// Path is the path that clients must have the right to get, "" for the path of each request.
	Path string
	// SharedAccount is the name of an account whose tokens users request, or "". Tokens that live
	// longer than sharedLifetime are refused: a user without the right could still use them.
	SharedAccount string
}

// reviewer has the API server authenticate and authorize requests. reviewer fails closed.
type reviewer struct {
	Access
	log     *slog.Logger
	allowed *cache.LRUExpireCache // the time.Time of the last review, by token and request
	paces   *paces                // of refused tokens
	free    chan struct{}         // a semaphore for concurrent reviews
	said    rate.Sometimes
}

func newReviewer(access Access, log *slog.Logger) *reviewer {
	return &reviewer{
		Access: access, log: log,
		allowed: cache.NewLRUExpireCache(mostRemembered), paces: newPaces(reviewRate, reviewBurst),
		free: make(chan struct{}, mostReviews), said: rate.Sometimes{Interval: time.Minute},
	}
}

// Reviews returns the client of a reviewer. The client has no rate limit, because the reviewer
// limits rates.
func Reviews(cfg *rest.Config) (kubernetes.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make a Kubernetes client for reviews of tokens: %w", err)
	}
	return client, nil
}

// asked is a token and the request with the token. asked contains only a hash of the token.
type asked struct {
	token      [sha256.Size]byte
	verb, path string
}

// refusal is the reason that a request is rejected.
type refusal struct {
	status int
	text   string
}

func (e *refusal) Error() string { return e.text }

// require returns a handler that passes a request to next only if the API server allows the
// request.
func (v *reviewer) require(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := v.check(r)
		var no *refusal
		switch {
		case err == nil:
			next.ServeHTTP(w, r)
		case errors.As(err, &no):
			if no.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			http.Error(w, no.text, no.status)
		default:
			v.said.Do(func() {
				v.log.Error("failed to have the API server review a token; refusing requests", "error", err)
			})
			http.Error(w, "failed to ask the API server for the reader's rights; retry", http.StatusServiceUnavailable)
		}
	})
}

func (v *reviewer) check(r *http.Request) error {
	token := tokenOf(r.Header)
	if token == "" {
		return &refusal{http.StatusUnauthorized, "send a bearer token of the cluster"}
	}
	what := asked{sha256.Sum256([]byte(token)), strings.ToLower(r.Method), cmp.Or(v.Path, r.URL.Path)}
	last, known := v.allowed.Get(what)
	if known && time.Since(last.(time.Time)) < remembered {
		return nil
	}
	// All users of a proxy, such as the API server, are one client. Only refusals therefore count.
	pace := v.paces.of(clientOf(r.RemoteAddr))
	if !known && pace.Tokens() < 1 {
		return &refusal{http.StatusTooManyRequests, "too many refused tokens from this address; retry"}
	}
	select {
	case v.free <- struct{}{}:
		defer func() { <-v.free }()
	default:
		return &refusal{http.StatusServiceUnavailable, "too many token reviews at once; retry"}
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewPatience)
	defer cancel()
	err := v.review(ctx, token, what)
	var no *refusal
	switch {
	case err == nil:
		v.allowed.Add(what, time.Now(), familiar)
	case errors.As(err, &no):
		v.allowed.Remove(what)
		pace.Allow()
	}
	return err
}

// tokenOf returns the client's token, or "".
func tokenOf(header http.Header) string {
	if token := header.Get(agentapi.TokenHeader); token != "" {
		return token
	}
	scheme, token, _ := strings.Cut(header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// review sends a TokenReview and a SubjectAccessReview to the API server.
func (v *reviewer) review(ctx context.Context, token string, what asked) error {
	said, err := v.Reviews.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: v.audiences()}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a TokenReview: %w", err)
	}
	// An authenticator that ignores audiences returns no audiences.
	if !said.Status.Authenticated || v.Audience != "" && !slices.Contains(said.Status.Audiences, v.Audience) {
		return &refusal{http.StatusUnauthorized, "the API server does not know this token, or the token has another audience"}
	}
	user := said.Status.User
	if user.Username == v.SharedAccount && outlives(token, sharedLifetime) {
		return &refusal{http.StatusUnauthorized, fmt.Sprintf("the token lives longer than %v: request a token with a shorter duration", sharedLifetime)}
	}
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	access, err := v.Reviews.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: what.path, Verb: what.verb},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a SubjectAccessReview: %w", err)
	}
	if !access.Status.Allowed {
		return &refusal{http.StatusForbidden, fmt.Sprintf("%s may not %s %s: bind the account to a ClusterRole with this nonResourceURL", user.Username, what.verb, what.path)}
	}
	return nil
}

// audiences returns the audiences of a TokenReview.
func (v *reviewer) audiences() []string {
	if v.Audience == "" {
		return nil
	}
	return []string{v.Audience}
}

// outlives reports whether a token that the API server has authenticated lives longer than most. A
// token without an end lives longer.
func outlives(token string, most time.Duration) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return true
	}
	var claims struct {
		Issued  int64 `json:"iat"`
		Expires int64 `json:"exp"`
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(text, &claims) != nil || claims.Issued <= 0 || claims.Expires <= 0 {
		return true
	}
	return claims.Expires-claims.Issued > int64(most/time.Second)
}
