"""Tracking parameters: query parameters that say how a reader came to a page, not which page it is.

This is our own list of exact names. They are compared case-insensitively, because some programs write them in capitals.
A name is listed for all hosts only if we know no host where it means something else. `ref`, `source`, `s` and `tag` are
not listed: they select the content on too many hosts. A host has its own rule if more names track there, or if a listed
name has a meaning there. In doubt a name is left out: a link that is stored twice does less harm than a lost link.

The secondary key of a link depends on this list. Every change to it must raise VERSION.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 2


def _names(text: str) -> frozenset[str]:
    return frozenset(text.lower().split())


EVERYWHERE = _names("""
    utm_source utm_medium utm_campaign utm_term utm_content utm_id utm_name utm_cid utm_reader utm_referrer utm_social
    utm_social-type utm_brand utm_place utm_pubreferrer utm_swu utm_viz_id utm_source_platform utm_creative_format
    utm_marketing_tactic utm_campaign_id utm_klaviyo_id utm_sq
    gclid gclsrc dclid gbraid wbraid gad_source gad_campaignid srsltid _ga _gl
    fbclid fb_action_ids fb_action_types fb_source fb_ref igshid
    msclkid twclid ttclid li_fat_id epik rdt_cid ScCid yclid ysclid _openstat tblci dicbo
    mc_cid mc_eid mkt_tok _hsenc _hsmi __hssc __hstc __hsfp hsCtaTracking
    hsa_acc hsa_ad hsa_cam hsa_grp hsa_kw hsa_mt hsa_net hsa_src hsa_tgt hsa_ver
    elqTrackId elqTrack elqaid elqat elqCampaignId
    vero_id vero_conv oly_enc_id oly_anon_id ck_subscriber_id ml_subscriber ml_subscriber_hash vgo_ee dm_i
    _bta_tid _bta_c trk_contact trk_msg trk_module trk_sid _kx __s
    pk_campaign pk_kwd pk_keyword pk_source pk_medium pk_content pk_cid
    mtm_campaign mtm_keyword mtm_kwd mtm_source mtm_medium mtm_content mtm_cid mtm_group mtm_placement
    matomo_campaign matomo_kwd matomo_keyword matomo_source matomo_medium matomo_content matomo_cid
    piwik_campaign piwik_kwd piwik_keyword
    itm_source itm_medium itm_campaign itm_term itm_content
    at_medium at_campaign at_campaign_type at_custom1 at_custom2 at_custom3 at_custom4 xtor
    ns_mchannel ns_source ns_campaign ns_linkname ns_fee
    WT.mc_id WT.nav wt_zmc ef_id s_kwcid rb_clickid wickedid wickedsource
    irclickid irgwc sscid cjevent cjdata ranMID ranEAID ranSiteID _branch_match_id _branch_referrer
""")


@dataclass(frozen=True, slots=True)
class HostRule:
    """Exceptions for a host and its subdomains."""

    # Names that track only here.
    adds: frozenset[str] = frozenset()
    # Names in EVERYWHERE that have a meaning here.
    keeps: frozenset[str] = frozenset()

    def tracks(self, name: str) -> bool:
        """Return whether the parameter of this lower-case name tracks."""
        return name in self.adds or (name in EVERYWHERE and name not in self.keeps)


_AMAZON = _names("""
    ref ref_ tag linkCode linkId ascsubtag creative creativeASIN camp qid sr crid sprefix dib dib_tag content-id _encoding
    pd_rd_i pd_rd_r pd_rd_w pd_rd_wg pd_rd_p pf_rd_i pf_rd_m pf_rd_p pf_rd_r pf_rd_s pf_rd_t
""")
_AMAZON_HOSTS = """
    amazon.com amazon.ca amazon.com.mx amazon.com.br amazon.co.uk amazon.ie amazon.de amazon.fr amazon.it amazon.es
    amazon.nl amazon.com.be amazon.se amazon.pl amazon.com.tr amazon.ae amazon.sa amazon.eg amazon.in amazon.sg
    amazon.co.jp amazon.com.au
"""
_APPLE = _names("at ct pt itsct itscg")
_BILIBILI = _names("""
    spm_id_from from_spmid from_source vd_source share_source share_medium share_plat share_session_id share_tag
    share_from unique_k bbid
""")
_EBAY = _names("_trkparms _trksid mkevt mkcid mkrid campid toolid customid ssspo sssrc ssuid widget_ver")
_FACEBOOK = _names("__tn__ __cft__[0] __xts__[0] mibextid rdid fref hc_ref hc_location refsrc ref _rdr _rdc")
_GOOGLE = _names("""
    ved ei sca_esv sxsrf gs_lcp gs_lcrp gs_lp gs_ssp sclient oq aqs uact sourceid rlz iflsig biw bih dpr
""")
_TAOBAO = _names("spm scm")
_TWITTER = _names("s t ref_src ref_url cxt")
_YAHOO = _names("guccounter guce_referrer guce_referrer_sig")
_YOUTUBE = _names("si feature pp ab_channel embeds_referring_euri embeds_referring_origin source_ve_path")
# These hosts store copies of pages, each under the complete URL of the page.
_ARCHIVE = HostRule(keeps=EVERYWHERE)

_TRACK_THERE: tuple[tuple[str, frozenset[str]], ...] = (
    ("youtube.com youtu.be youtube-nocookie.com", _YOUTUBE),
    ("open.spotify.com spotify.link", _names("si nd pi dl_branch")),
    ("soundcloud.com", _names("si")),
    ("twitter.com x.com", _TWITTER),
    ("facebook.com fb.watch", _FACEBOOK),
    ("instagram.com", _names("igsh ig_rid")),
    ("threads.net threads.com", _names("igsh xmt slof")),
    (
        "tiktok.com",
        _names("_r _t _d is_from_webapp sender_device web_id is_copy_url share_app_id share_link_id tt_from"),
    ),
    (
        "reddit.com",
        _names("share_id rdt ref ref_source ref_campaign correlation_id post_fullname post_index $deep_link"),
    ),
    ("linkedin.com", _names("trk trkInfo trkEmail lipi midToken midSig otpToken trackingId refId eBP rcm")),
    ("quora.com", _names("ch oid share srid target_name target_type")),
    ("medium.com", _names("source gi")),
    ("substack.com", _names("r isFreemail triedRedirect showWelcomeOnShare")),
    ("tumblr.com", _names("source")),
    ("twitch.tv", _names("tt_content tt_medium")),
    ("vimeo.com", _names("share fl fe")),
    ("bilibili.com b23.tv", _BILIBILI),
    ("zhihu.com", _names("utm_oi utm_psn utm_division")),
    (_AMAZON_HOSTS, _AMAZON),
    # A subdomain of amazon.com, but not a shop.
    ("aws.amazon.com", _names("trk trkCampaign sc_channel sc_campaign sc_content sc_medium sc_publisher sc_country")),
    ("ebay.com ebay.ca ebay.co.uk ebay.ie ebay.de ebay.fr ebay.it ebay.es ebay.at ebay.ch ebay.pl ebay.com.au", _EBAY),
    ("etsy.com", _names("click_key click_sum ref pro frs plkey ga_order ga_search_type ga_view_type")),
    (
        "aliexpress.com",
        _names("spm scm scm_id scm-url algo_pvid algo_expid aff_fcid aff_fsk aff_platform aff_trace_key"),
    ),
    ("taobao.com tmall.com 1688.com alibaba.com", _TAOBAO),
    ("booking.com", _names("aid label sid srepoch srpvid")),
    ("store.steampowered.com", _names("snr curator_clanid")),
    ("apps.apple.com music.apple.com podcasts.apple.com books.apple.com itunes.apple.com", _APPLE),
    ("www.google.com", _GOOGLE),
    ("docs.google.com drive.google.com", _names("usp")),
    ("bing.com", _names("form cvid qs sp pq sk ghsh ghacc ghpl")),
    ("microsoft.com msn.com", _names("ocid cvid")),
    ("yahoo.com aol.com techcrunch.com engadget.com", _YAHOO),
    ("wikipedia.org wikimedia.org wiktionary.org", _names("wprov")),
    ("github.com", _names("email_source email_token notification_referrer_id")),
    ("stackoverflow.com", _names("so_medium so_source")),
    ("imdb.com", _names("ref_ pf_rd_i pf_rd_m pf_rd_p pf_rd_r pf_rd_s pf_rd_t")),
    ("goodreads.com", _names("ref ac from_search from_srp qid rank")),
    ("producthunt.com kickstarter.com", _names("ref")),
    ("nytimes.com", _names("smid smtyp campaign_id emc instance_id nl regi_id segment_id te user_id partner ugrp")),
    ("theguardian.com", _names("CMP")),
    ("washingtonpost.com", _names("wpisrc wpmm wpmk itid")),
    ("wsj.com barrons.com marketwatch.com", _names("mod reflink")),
    ("bloomberg.com", _names("srnd sref leadSource cmpid")),
    ("forbes.com", _names("sh")),
    ("bbc.co.uk bbc.com", _names("at_link_id at_link_origin at_link_type at_ptr_name at_bbc_team at_format")),
)
_CARRY_MEANING_THERE: tuple[tuple[str, HostRule], ...] = (
    ("web.archive.org archive.today archive.ph archive.is archive.li archive.md archive.vn archive.fo", _ARCHIVE),
    # Pages of mail services, where these parameters select the reader's newsletter or subscription.
    ("marketo.com mktoweb.com", HostRule(keeps=_names("mkt_tok"))),
    ("eloqua.com", HostRule(keeps=_names("elqTrackId elqTrack elqaid elqat elqCampaignId"))),
    ("mailerlite.com mailerlite.io", HostRule(keeps=_names("ml_subscriber ml_subscriber_hash"))),
)

HOSTS: dict[str, HostRule] = {
    **{host: HostRule(adds=adds) for hosts, adds in _TRACK_THERE for host in hosts.split()},
    **{host: rule for hosts, rule in _CARRY_MEANING_THERE for host in hosts.split()},
}
_ANY_HOST = HostRule()


def rule_for(host: str) -> HostRule:
    """Return the rule of the host itself, or of its nearest parent domain."""
    while host:
        if (rule := HOSTS.get(host)) is not None:
            return rule
        host = host.partition(".")[2]
    return _ANY_HOST
